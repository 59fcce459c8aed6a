"""What a claim hands out and what a worker reports back: the values that travel between verbs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.core.tasks.failure import Failure
from holdfast.core.tasks.outcome import Outcome
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.notifications import NO_NOTIFICATIONS, Notifications
from holdfast.store.session import LockTimeouts


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """The right to run one attempt, with what it needs. Fields in the order the claim statements return them."""

    task_id: int
    attempt: int
    lease_token: Any
    lane_id: int
    policy_id: int
    retries: int
    losses: int
    tenant_id: int
    run_id: int | None
    node_no: int | None
    input: bytes
    tags: list[str] | None
    fault: Failure | None = None
    """Why a node cannot have its input: its attempt fails with this instead of running."""
    followers: int = 0
    """How many nodes wait for this one: what its end may release."""

    def given(self, encoded: bytes, tags: list[str] | None, followers: int) -> Claimed:
        """The same with the input and tags of its run; spelled out, because claims of nodes come by the thousand."""
        return Claimed(
            self.task_id,
            self.attempt,
            self.lease_token,
            self.lane_id,
            self.policy_id,
            self.retries,
            self.losses,
            self.tenant_id,
            self.run_id,
            self.node_no,
            encoded,
            tags,
            None,
            followers,
        )


class Report(msgspec.Struct, frozen=True, gc=False):
    """How one claimed attempt ended, with the lease that proves the right to say so."""

    task_id: int
    attempt: int
    lease_token: Any
    policy_id: int
    retries: int
    losses: int
    outcome: Outcome
    input: bytes | None = None
    """What a node was given, for the dead letter; a plain task keeps its own."""
    policy: RetryPolicy | None = None
    """What to decide by instead of the task's own policy, where the worker has rules of its own."""
    opens_letter: bool = True
    """Whether a failure for good is parked as a dead letter."""
    lane_id: int = 0
    """For breakers, which count by action; 0 where nobody knows, and then nothing is counted."""
    followers: int = 0
    """How many nodes wait for this one: what settling it may release."""
    leased_at: float = 0.0
    """When the lease was last renewed while the attempt ran, by the clock of its worker, which alone looks at it."""
    notes: Sequence[tuple[str, str]] = ()
    """What the attempt said on the way, as kind and JSON, where that comes with its report: kept with it, once."""


class Refusal(msgspec.Struct, frozen=True):
    """A report the fence refused, and who won instead."""

    task_id: int
    attempt: int
    winner: str


class Settled(msgspec.Struct, frozen=True):
    """The answer to a batch of reports, and what to announce after the commit."""

    accepted: int
    refused: list[Refusal]
    notifications: Notifications

    def and_(self, other: Settled) -> Settled:
        return Settled(
            self.accepted + other.accepted, self.refused + other.refused, self.notifications.and_(other.notifications)
        )

    def less(self, claimed: Iterable[Claimed]) -> Settled:
        """The same when these were claimed in the same transaction."""
        return Settled(self.accepted, self.refused, self.notifications.less(one.lane_id for one in claimed))


def patience_of(lease_seconds: float) -> LockTimeouts:
    """How long settling may wait for each lock, and hold its own without a word: well below the lease, because what it
    settles cannot be renewed meanwhile."""
    return LockTimeouts(lock_seconds=lease_seconds / 4, idle_seconds=lease_seconds)


NOTHING_SETTLED = Settled(0, [], NO_NOTIFICATIONS)


def report_of(claimed: Claimed, outcome: Outcome, *, leased_at: float = 0.0) -> Report:
    return Report(
        claimed.task_id,
        claimed.attempt,
        claimed.lease_token,
        claimed.policy_id,
        claimed.retries,
        claimed.losses,
        outcome,
        input=None if claimed.run_id is None else claimed.input,
        lane_id=claimed.lane_id,
        followers=claimed.followers,
        leased_at=leased_at,
    )
