"""Wire types of the worker contract: requests of a remote worker, and the responses.

Both ends use these types, so that they cannot diverge. Ids are strings in responses and may be sent as numbers; unknown
fields are ignored, so that an older end understands a newer one.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec

from holdfast.core.tasks.failure import FAILED_CODE
from holdfast.core.values.bounds import PRIORITY_DEFAULT

Id: TypeAlias = str | int

WAIT_SECONDS_MAX = 50.0
"""The longest that a response is delayed until there is work. It is shorter than the 60 s after which many proxies
close an idle connection; a longer wait means fewer requests from idle workers."""
WAIT_SECONDS_UNTOLD = 30.0
"""The wait that is assumed of an older server that does not state its maximum."""

NOTHING = msgspec.Raw(b"null")


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The limits and intervals that a worker must observe."""

    lease_seconds: float
    heartbeat_seconds: float
    output_bytes_max: int
    wait_seconds_max: float = WAIT_SECONDS_MAX
    queues: list[str] | None = None
    """The only queues that this token may serve and declare actions for; null for all."""


class Allowed(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the terms that limits declarations; an older server does not send it."""

    queues: list[str] | None = None


class DeclaredAction(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's declaration of one of its actions."""

    action: str
    queue: str
    policy: dict[str, Any]
    priority: int = PRIORITY_DEFAULT
    breaker: dict[str, Any] | None = None
    quota: dict[str, Any] | None = None


class Register(msgspec.Struct, frozen=True):
    worker_id: str = ""
    queues: list[str] | None = None
    actions: list[str] = []
    runtimes: list[str] = []
    slots: int = 1
    version: str = ""
    labels: dict[str, str] = {}
    declares: list[DeclaredAction] = []


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    worker_id: str
    lease_seconds: float
    heartbeat_seconds: float
    wait_seconds_max: float = WAIT_SECONDS_UNTOLD


class LeaveRequest(msgspec.Struct, frozen=True):
    """Sign-off of a worker. `stopped`: the worker was asked to stop, so its tasks are released and count as no loss."""

    worker_id: Id
    stopped: bool = False


class LeaveAnswer(msgspec.Struct, frozen=True):
    """Response to a sign-off. `known` false: there was no such worker, or it had already left."""

    known: bool


class Claim(msgspec.Struct, frozen=True):
    """Claim one named task, or up to `limit` tasks of some queues.

    With `held`, the list of all tasks that the worker has, the request may be repeated: tasks leased to the worker that
    it did not list are handed out again.
    """

    worker_id: Id
    task_id: Id | None = None
    queues: list[str] | None = None
    limit: int = 1
    wait_seconds: float = 0.0
    held: list[Id] | None = None


class Wait(msgspec.Struct, frozen=True):
    """Request a response as soon as there may be work, or an attempt of this worker was asked to stop; with
    `takes_work` false only for the latter.
    """

    worker_id: Id
    queues: list[str] | None = None
    wait_seconds: float = WAIT_SECONDS_UNTOLD
    takes_work: bool = True


class LeaseProof(msgspec.Struct, frozen=True):
    """Proof of the right to act for an attempt."""

    task_id: Id
    attempt: int
    lease_token: UUID


class ExtendAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Response to a heartbeat for one attempt.

    `cancel_requested`: stop it, and report `canceled`. `busy`: the lease was not extended this time, because another
    transaction has the task locked; it stays valid until it expires, so ask again.
    """

    lease_expires_at: datetime
    cancel_requested: bool
    capability_token: str | None
    busy: bool = False


class BeatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One heartbeat for all tasks of a worker: task ids, and their tokens in the same order.

    `ended_ids` and `ended_tokens` are attempts that ended and whose reports have not been answered: their leases are
    renewed as well, but they are never reported lost or asked to stop.
    """

    worker_id: Id
    task_ids: list[Id] = []
    lease_tokens: list[UUID] = []
    ended_ids: list[Id] = []
    ended_tokens: list[UUID] = []
    health: dict[str, Any] = {}


class BeatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Response to a heartbeat.

    `worker_state` null: this worker is no longer known. `kept`: the ended attempts that were renewed. `busy`: not
    renewed this time, because other transactions have these tasks locked, but not lost. A task in neither list is lost.
    """

    renewed: list[str]
    canceled: list[str]
    worker_state: str | None
    crew: int
    rank: int
    lease_seconds: float
    kept: list[str] = []
    busy: list[str] = []


class ReportedFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker's report of a failure; null means the default."""

    code: str | None = FAILED_CODE
    message: str | None = ""
    type: str | None = ""
    traceback: str | None = ""
    said: Literal["retry", "fatal"] | None = None
    retry_after_seconds: float | None = None
    bases: list[str] | None = []
    frames: list[str] | None = []
    effect: str | None = ""
    """The idempotency key of the effect whose failure ended the attempt."""


class WorkerNote(msgspec.Struct, frozen=True):
    """A log line or progress report of a running attempt."""

    kind: Literal["log", "progress"]
    detail: dict[str, Any]


class Completion(msgspec.Struct, frozen=True, omit_defaults=True):
    task_id: Id
    attempt: int
    lease_token: UUID
    status: Literal["completed", "succeeded", "failed", "timed_out", "lost", "canceled", "released"]
    outputs: msgspec.Raw = NOTHING
    error: ReportedFailure | None = None
    events: list[Any] | None = []
    """Items have the form of `WorkerNote`; any other item is stored as a log line."""
    input: msgspec.Raw = NOTHING
    """The input that a node of a run was given, for its dead letter."""


class ReportAccepted(msgspec.Struct, frozen=True):
    """Response to an accepted report; a repeated report gets the same response."""

    task_id: str
    attempt: int
    accepted: bool = True


class Batch(msgspec.Struct, frozen=True, omit_defaults=True):
    """Reports of ended attempts and a claim, in one request.

    `held` null: the worker renews its leases with `/internal/heartbeats`, so nothing is renewed or searched here.
    `known` are the tokens of every lease that it received, `known_tasks` their tasks in the same order; tasks leased to
    the worker beyond these are handed out again.
    """

    worker_id: Id
    held: list[Id] | None = []
    known: list[UUID] | None = None
    known_tasks: list[Id] = []
    completions: list[Completion] = []
    queues: list[str] | None = None
    limit: int = 0
    wait_seconds: float = 0.0


class HandedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A claimed task, as a remote worker receives it."""

    task_id: str
    attempt: int
    lease_token: str
    lease_expires_at: datetime | None
    action: str
    queue: str
    tenant: str
    input: msgspec.Raw
    tags: list[str]
    run_id: str | None
    timeout_seconds: float | None
    memory_bytes_max: int | None
    capability_token: str | None = None


class Attach(msgspec.Struct, frozen=True):
    """Attach a launched worker to its task. `attempt` must be a positive integer; anything else means the first."""

    worker_id: Id
    task_id: Id
    launch_token: str
    attempt: Any = 1


class ClaimAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Response to a claim; `lost`, `canceled` and `busy` refer to the tasks that the worker listed."""

    tasks: list[HandedTask]
    lost: list[str] = []
    canceled: list[str] = []
    busy: list[str] = []


class Attached(msgspec.Struct, frozen=True):
    """The task that a one-shot token was exchanged for.

    Empty: the attempt's input was unavailable, and it has failed.
    """

    tasks: list[HandedTask]


class Refused(msgspec.Struct, frozen=True):
    """A report that the fence refused, and what won instead."""

    task_id: str
    attempt: int
    winner: str


class ExchangeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Response to a batch.

    `lost`, `canceled` and `busy` refer to the tasks that the worker listed; leases of busy tasks were not renewed this
    time, because other transactions have these tasks locked.
    """

    tasks: list[HandedTask]
    accepted: int
    refused: list[Refused]
    lost: list[str]
    canceled: list[str]
    draining: bool
    more: bool
    """Another claim could find tasks at once."""
    lease_seconds: float
    busy: list[str] = []


class AttemptNotes(msgspec.Struct, frozen=True):
    """Notes of one running attempt, with its lease."""

    task_id: Id
    attempt: int
    lease_token: UUID
    events: list[Any] | None


class NotesRequest(msgspec.Struct, frozen=True):
    """Notes of running attempts."""

    notes: list[AttemptNotes]


class NotesAnswer(msgspec.Struct, frozen=True):
    """The number of accepted notes; notes after the end of a lease are dropped."""

    accepted: int


class WaitAnswer(msgspec.Struct, frozen=True):
    """Response to a wait.

    `work` false: the time is over, ask again. `stop`: an attempt of this worker was asked to stop; the next heartbeat
    response names it.
    """

    work: bool
    draining: bool = False
    stop: bool = False
