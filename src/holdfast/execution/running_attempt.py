"""What a worker process holds at this moment: one entry per claimed attempt, shared by its loop and its heart.

Entries are added and removed by the event loop's thread only; the heart reads a snapshot and moves deadlines. All times
are this process's monotonic clock, which other processes of the machine share.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec

from holdfast.authoring.action import Action
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.leases import Claimed
from holdfast.execution.dataset_writer import AttemptDatasets
from holdfast.store.catalog import Lane

FOREVER = float("inf")
HAND_BACK_SECONDS = 2.0
"""What a process whose attempt is overdue gets to hand back the rest before it is killed from outside."""


class AttemptPlan(msgspec.Struct, frozen=True):
    """How attempts of one lane and policy are run."""

    action: Action[..., Any]
    lane: Lane
    policy: RetryPolicy


class PolicyOverrides(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker does differently from the policies of its tasks: less, never more."""

    retries: bool = True
    opens_letters: bool = True
    max_attempts: int | None = None
    default_timeout_seconds: float | None = None

    def applied(self, policy: RetryPolicy) -> RetryPolicy:
        """The policy under which this worker runs and reports a task."""
        retries_max = policy.max_retries if self.max_attempts is None else self.max_attempts - 1
        return replace(
            policy,
            is_enabled=policy.is_enabled and self.retries,
            max_retries=min(policy.max_retries, retries_max),
            timeout_seconds=policy.timeout_seconds or self.default_timeout_seconds,
        )


class RunningAttempt(msgspec.Struct, eq=False):
    """One claimed attempt and everything needed to run it. A plain struct: thousands a second are made."""

    claimed: Claimed
    plan: AttemptPlan
    lease_seconds: float
    renewed_at: float
    deadline_at: float = FOREVER
    """When the attempt is past its time limit and its grace."""
    is_started: bool = False
    verdict: str | None = None
    """Why it was told to stop."""
    stop: threading.Event | None = None
    task: asyncio.Task[None] | None = None
    writing: AttemptDatasets | None = None
    """What it did to datasets so far, if anything."""

    @property
    def fence_at(self) -> float:
        """Stop the work by then: the lease counts from before the request left, so this is ahead of the database."""
        return self.renewed_at + self.lease_seconds * 0.8

    @property
    def overdue_at(self) -> float:
        """End the process by then: the lease is about to expire, or the attempt is past its limit and grace."""
        return min(self.renewed_at + self.lease_seconds * 0.95, self.deadline_at)

    @property
    def kill_at(self) -> float:
        """Be dead by then."""
        return min(self.renewed_at + self.lease_seconds * 0.95, self.deadline_at + HAND_BACK_SECONDS)


def overdue_at(held: Iterable[RunningAttempt]) -> float:
    """When this process should end by itself, if nothing changes until then."""
    return min((entry.overdue_at for entry in held), default=FOREVER)


def kill_at(held: Iterable[RunningAttempt]) -> float:
    """When this process must not be running any more, if nothing changes until then."""
    return min((entry.kill_at for entry in held), default=FOREVER)
