"""What is known about one task at one moment, as values: the evidence that `explain` turns into sentences.

Read together, by one pass over the database; instants are the database's.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from holdfast.core.dead_letters.dead_letter import DISPATCHES_MAX


class Position(StrEnum):
    """Where a task stands, finer than its state: a queued task may be delayed or reserved, a failed one retrying."""

    QUEUED = "queued"
    DELAYED = "delayed"
    RESERVED = "reserved"
    RUNNING = "running"
    RETRYING = "retrying"
    FAILED = "failed"
    CANCELED = "canceled"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """One worker as others see it. `queues` None means every queue."""

    name: str
    state: str
    beat_at: datetime
    ended_at: datetime | None = None
    version: str = ""
    queues: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersFacts:
    """The workers that could run the task (`able` of them live), and the nearest ones when none can."""

    able: int = 0
    slots: int = 0
    busy: int = 0
    last: WorkerFacts | None = None
    elsewhere: WorkerFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """The task's queue: paused by whom, limited to what, and how much room is left."""

    name: str
    paused_at: datetime | None = None
    paused_by: str = ""
    paused_reason: str = ""
    max_running: int | None = None
    running: int = 0
    starts_per_second: float | None = None
    starts_room: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFacts:
    """The task's tenant, where it is limited: how much of its work runs, of how much may."""

    name: str
    max_running: int
    running: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerFacts:
    """The breaker of the task's action: since when it is open, after what, or by whose hand; and its trials."""

    state: str
    since: datetime
    trial_at: datetime | None = None
    attempts: int = 0
    failures: int = 0
    cause: str = ""
    actor: str = ""
    reason: str = ""
    trials: int = 3
    passed: int = 0
    running: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaFacts:
    """A retry quota over the task: whose it is, how it reads, how much of it is used, and when there is room again."""

    scope: str
    name: str
    text: str
    used: int
    allowed: int
    next_slot_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFacts:
    """Who launches the task's worker, since when no server said it can, and how launches of its next attempt fared.

    A launcher may be for some tenants and some actions only.
    """

    launcher: str
    seen_at: datetime | None = None
    is_for_tenant: bool = True
    is_for_action: bool = True
    slots: int = 0
    taken: int = 0
    failures: int = 0
    error: str = ""
    launched_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureFacts:
    """The last attempt that failed, timed out or was lost, with the decision that followed."""

    attempt: int
    state: str
    code: str
    type: str
    message: str
    reason: str
    rule: str
    sentence: str
    ended_at: datetime
    retry_at: datetime | None = None
    known_as: str = ""
    """Its class, where `reason` says which budget ended the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignFacts:
    """The campaign that released a letter, or that it waits in."""

    campaign_id: int
    name: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFacts:
    """A dead letter of the task that is not resolved. `next_at` is when its backoff ends."""

    dead_letter_id: int
    state: str
    changed_at: datetime
    disposition: str = ""
    reason: str = ""
    actor: str = ""
    dispatches: int = 0
    dispatches_max: int = DISPATCHES_MAX
    next_at: datetime | None = None
    can_retry: bool = True
    campaign: CampaignFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlace:
    """Where a task belongs: a node of a run, or one item of a node."""

    run_id: str
    flow: str
    version: int
    node: str
    item: int | None = None

    def __str__(self) -> str:
        item = "" if self.item is None else f"item {self.item} of "
        return f"{item}node {self.node} of run {self.run_id} ({self.flow} version {self.version})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CarrierFacts:
    """A carrier of wake-ups that cannot be used, and since when."""

    name: str
    away_since: datetime
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """Everything an explanation may rest on. `at` is the moment of reading."""

    task_id: str
    action: str
    position: Position
    at: datetime
    created_at: datetime
    queue: QueueFacts
    crew: WorkersFacts = WorkersFacts()
    tenant: TenantFacts | None = None
    breaker: BreakerFacts | None = None
    quotas: tuple[QuotaFacts, ...] = ()
    carrier: CarrierFacts | None = None
    """What should carry its wake-up and is away."""
    attempt: int = 0
    retries: int = 0
    max_retries: int = 3
    losses: int = 0
    max_losses: int = 3
    generation: int = 1
    due_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    lease_expires_at: datetime | None = None
    timeout_seconds: float | None = None
    cancel_at: datetime | None = None
    actor: str = ""
    reason: str = ""
    worker: WorkerFacts | None = None
    failure: FailureFacts | None = None
    progress: str = ""
    ahead: int = 0
    ahead_is_more: bool = False
    output_bytes: int = 0
    unknown_effects: tuple[str, ...] = ()
    """What its attempts began to send and have neither receipt nor refusal for."""
    undone_effects: tuple[str, ...] = ()
    """What was undone since, and by which task."""
    letters: tuple[DeadLetterFacts, ...] = ()
    """The newest dead letter that is being retried, the newest that was left alone, the newest that is open."""
    place: RunPlace | None = None
    launch: LaunchFacts | None = None
    """Where a launcher starts the worker."""
