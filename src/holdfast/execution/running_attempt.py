"""The state of one claimed attempt in a worker process, shared by its event loop and its heartbeat thread.

Attempts are added and removed by the event loop's thread only; the heartbeat thread reads a snapshot and moves
deadlines. All times are of the machine's monotonic clock, which its processes share.
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
"""How long a process with an overdue attempt has to hand back its other tasks before the supervisor kills it."""


class AttemptPlan(msgspec.Struct, frozen=True):
    """How attempts of one lane and policy are run."""

    action: Action[..., Any]
    lane: Lane
    policy: RetryPolicy


class PolicyOverrides(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's restrictions of its tasks' policies. They can only reduce what a policy allows."""

    retries: bool = True
    opens_dead_letters: bool = True
    max_attempts: int | None = None
    default_timeout_seconds: float | None = None

    def applied(self, policy: RetryPolicy) -> RetryPolicy:
        """Return the policy under which this worker runs and reports a task."""
        retries_max = policy.max_retries if self.max_attempts is None else self.max_attempts - 1
        return replace(
            policy,
            is_enabled=policy.is_enabled and self.retries,
            max_retries=min(policy.max_retries, retries_max),
            timeout_seconds=policy.timeout_seconds or self.default_timeout_seconds,
        )


class RunningAttempt(msgspec.Struct, eq=False):
    """One claimed attempt and everything needed to run it. A plain struct, because thousands are created per second."""

    claimed: Claimed
    plan: AttemptPlan
    lease_seconds: float
    renewed_at: float
    deadline_at: float = FOREVER
    """When the attempt exceeds its time limit and its grace time."""
    is_started: bool = False
    stop_reason: str | None = None
    """Why the attempt was asked to stop."""
    stop: threading.Event | None = None
    task: asyncio.Task[None] | None = None
    writing: AttemptDatasets | None = None
    """What the attempt has written to datasets so far, if anything."""

    @property
    def fence_at(self) -> float:
        """When the attempt must stop.

        The lease is counted from before the request was sent, so this instant is earlier than the database's.
        """
        return self.renewed_at + self.lease_seconds * 0.8

    @property
    def overdue_at(self) -> float:
        """When the process must end itself: its lease is about to expire, or the attempt is past limit and grace."""
        return min(self.renewed_at + self.lease_seconds * 0.95, self.deadline_at)

    @property
    def kill_at(self) -> float:
        """When the process must be dead."""
        return min(self.renewed_at + self.lease_seconds * 0.95, self.deadline_at + HAND_BACK_SECONDS)


def overdue_at(attempts: Iterable[RunningAttempt]) -> float:
    """Return when this process should end itself, if nothing changes until then."""
    return min((attempt.overdue_at for attempt in attempts), default=FOREVER)


def kill_at(attempts: Iterable[RunningAttempt]) -> float:
    """Return when this process must be dead, if nothing changes until then."""
    return min((attempt.kill_at for attempt in attempts), default=FOREVER)
