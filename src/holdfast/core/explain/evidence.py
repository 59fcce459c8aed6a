"""Evidence about one task at one moment, which `explain` turns into sentences.

It is read in one pass over the database; instants are the database's.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from holdfast.core.dead_letters.dead_letter import DISPATCHES_MAX


class Position(StrEnum):
    """The position of a task, finer than its state: a queued task may be delayed or reserved, a failed one retrying."""

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
    """One worker. `queues` None means every queue."""

    name: str
    state: str
    beat_at: datetime
    ended_at: datetime | None = None
    version: str = ""
    queues: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersFacts:
    """The workers that could run the task (`able` of them are live), and the closest match if none can."""

    able: int = 0
    slots: int = 0
    busy: int = 0
    last: WorkerFacts | None = None
    elsewhere: WorkerFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """The task's queue: who paused it, its limits, and how much room is left."""

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
    """The task's tenant, if it has a limit: how many of its tasks run, and how many may."""

    name: str
    max_running: int
    running: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerFacts:
    """The breaker of the task's action: since when it is open, why or by whom, and its trials."""

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
    """A retry quota that applies to the task: its scope, its text, how much is used, and when there is room again."""

    scope: str
    name: str
    text: str
    used: int
    allowed: int
    next_slot_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFacts:
    """The launcher of the task's worker, when a server last announced it, and failed launches of the next attempt.

    A launcher may serve some tenants and some actions only.
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
    """The class of the failure, if `reason` names the budget that ended the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignFacts:
    """The campaign that released a dead letter, or in which it waits."""

    campaign_id: int
    name: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFacts:
    """An unresolved dead letter of the task. `next_at` is when its backoff ends."""

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
    """What a task belongs to: a node of a run, or one item of a node."""

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
    """A wake-up carrier that is unavailable, and since when."""

    name: str
    away_since: datetime
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """All evidence for an explanation. `at` is the moment of reading."""

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
    """The carrier of its wake-up, if that is unavailable."""
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
    """Effects that its attempts began, with neither receipt nor refusal."""
    undone_effects: tuple[str, ...] = ()
    """Effects that were undone since, and by which task."""
    letters: tuple[DeadLetterFacts, ...] = ()
    """The newest dead letter that is being retried, the newest ignored one, and the newest open one."""
    place: RunPlace | None = None
    launch: LaunchFacts | None = None
    """Set if a launcher starts the task's worker."""
