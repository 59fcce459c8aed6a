"""The values passed between claim and settlement: what a worker receives and what it reports."""

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
    """A lease on one attempt, with its input. The fields are in the order in which the claim statements return them."""

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
    """Why the input of a node cannot be built: its attempt fails with this instead of running."""
    followers: int = 0
    """How many nodes depend on this one, and may be released when it ends."""

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> Claimed:
        """Return the lease in a row of a claim statement. The input of a node is null there; `inputs.py` builds it."""
        return cls(*row)

    def given(self, encoded: bytes, tags: list[str] | None, followers: int) -> Claimed:
        """Return a copy with the input and tags of its run. Spelled out for speed: nodes are claimed by the
        thousand."""
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
    """The outcome of one claimed attempt, with the lease token that authorizes the report."""

    task_id: int
    attempt: int
    lease_token: Any
    policy_id: int
    retries: int
    losses: int
    outcome: Outcome
    input: bytes | None = None
    """The input of a node, stored with its dead letter; a plain task has its input stored already."""
    policy: RetryPolicy | None = None
    """The policy to decide by instead of the task's own, if the worker has one."""
    opens_letter: bool = True
    """Whether a final failure opens a dead letter."""
    lane_id: int = 0
    """The lane whose breaker counts the outcome; 0 if unknown, and then nothing is counted."""
    followers: int = 0
    """How many nodes depend on this one, and may be released by settling it."""
    leased_at: float = 0.0
    """When the lease was last renewed while the attempt ran, by the monotonic clock of its worker. Only the worker
    reads it."""
    notes: Sequence[tuple[str, str]] = ()
    """Notes of the attempt, as kind and JSON, that are stored with the report, once."""


class Refusal(msgspec.Struct, frozen=True):
    """A report that the fence refused, and which attempt won instead."""

    task_id: int
    attempt: int
    winner: str


class Settled(msgspec.Struct, frozen=True):
    """The result of settling a batch of reports, and the notifications to send after the commit."""

    accepted: int
    refused: list[Refusal]
    notifications: Notifications

    def and_(self, other: Settled) -> Settled:
        return Settled(
            self.accepted + other.accepted, self.refused + other.refused, self.notifications.and_(other.notifications)
        )

    def less(self, claimed: Iterable[Claimed]) -> Settled:
        """Return this result without notifications for tasks that the same transaction claimed."""
        return Settled(self.accepted, self.refused, self.notifications.less(one.lane_id for one in claimed))


def lock_timeouts_for(lease_seconds: float) -> LockTimeouts:
    """Return the lock and idle timeouts of a settling transaction. They are well below the lease, because the leases
    that it settles cannot be renewed meanwhile."""
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
