"""The worker contract as it travels: what a worker elsewhere sends and what it is answered.

Both ends use these types, so that they cannot come to mean different things. Ids are strings outside and may be sent as
numbers; unknown fields are ignored, so that an older end understands a newer one.
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
"""The longest that an answer is held back until there is work. Shorter than the 60 s after which many proxies close a
connection on which nothing came; the longer it is, the less those who wait in vain cost."""
WAIT_SECONDS_UNTOLD = 30.0
"""What a server allows that does not say: an older one."""

NOTHING = msgspec.Raw(b"null")


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has to keep to."""

    lease_seconds: float
    heartbeat_seconds: float
    output_bytes_max: int
    wait_seconds_max: float = WAIT_SECONDS_MAX
    queues: list[str] | None = None
    """The only queues this token may serve and declare actions of; null for all."""


class Allowed(msgspec.Struct, frozen=True, kw_only=True):
    """Of the terms, what a worker may declare; an older server does not say."""

    queues: list[str] | None = None


class DeclaredAction(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker's code says about one of its actions."""

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
    """`stopped`: the worker was asked to stop, so what it still held is handed back and counts as no loss."""

    worker_id: Id
    stopped: bool = False


class LeaveAnswer(msgspec.Struct, frozen=True):
    """`known` false: there was no such worker, or it left before."""

    known: bool


class Claim(msgspec.Struct, frozen=True):
    """One named task, or up to `limit` of some queues.

    With `held`, all that the worker has, it may be repeated: what it holds and did not name is handed out again.
    """

    worker_id: Id
    task_id: Id | None = None
    queues: list[str] | None = None
    limit: int = 1
    wait_seconds: float = 0.0
    held: list[Id] | None = None


class Wait(msgspec.Struct, frozen=True):
    """Asks for an answer as soon as there may be work, or an attempt of this worker was asked to stop; with
    `takes_work` false only for the latter."""

    worker_id: Id
    queues: list[str] | None = None
    wait_seconds: float = WAIT_SECONDS_UNTOLD
    takes_work: bool = True


class LeaseProof(msgspec.Struct, frozen=True):
    """What proves the right to speak for an attempt."""

    task_id: Id
    attempt: int
    lease_token: UUID


class ExtendAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a beat for one attempt. `cancel_requested`: stop it, and report `canceled`. `busy`: it was not
    extended this time, because another transaction holds the task; the lease goes on until it expires, so ask again."""

    lease_expires_at: datetime
    cancel_requested: bool
    capability_token: str | None
    busy: bool = False


class BeatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One beat for everything that a worker holds: task ids, and their tokens in the same order. `ended_ids` and
    `ended_tokens` are attempts that ended and whose reports have not been answered: kept likewise, but never lost by
    this, nor asked to stop."""

    worker_id: Id
    task_ids: list[Id] = []
    lease_tokens: list[UUID] = []
    ended_ids: list[Id] = []
    ended_tokens: list[UUID] = []
    health: dict[str, Any] = {}


class BeatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a beat. `worker_state` null: this worker is not known any more. `kept`: which of the ended ones.
    `busy`: not renewed this time, because other transactions hold these tasks, and not lost; what is in neither list is
    lost."""

    renewed: list[str]
    canceled: list[str]
    worker_state: str | None
    crew: int
    rank: int
    lease_seconds: float
    kept: list[str] = []
    busy: list[str] = []


class ReportedFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker says about a failure; null is as good as nothing."""

    code: str | None = FAILED_CODE
    message: str | None = ""
    type: str | None = ""
    traceback: str | None = ""
    said: Literal["retry", "fatal"] | None = None
    retry_after_seconds: float | None = None
    bases: list[str] | None = []
    frames: list[str] | None = []
    effect: str | None = ""
    """The idempotency key of the effect that failed, where that ended the attempt."""


class WorkerNote(msgspec.Struct, frozen=True):
    """Something an attempt said while it ran."""

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
    """As `WorkerNote`; what is not is kept as a log line."""
    input: msgspec.Raw = NOTHING
    """What a node of a run was given, for its dead letter."""


class ReportAccepted(msgspec.Struct, frozen=True):
    """A report that counts; a repeated one is answered as before."""

    task_id: str
    attempt: int
    accepted: bool = True


class Batch(msgspec.Struct, frozen=True, omit_defaults=True):
    """`held` null: the worker keeps its leases with `/internal/heartbeats`, so nothing is renewed or looked for.

    `known` are the tokens of every lease that it heard of, `known_tasks` their tasks in the same order; what it holds
    beyond them is handed out.
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
    """A claimed task as a worker elsewhere gets it."""

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
    """`attempt` counts only if it is a whole number above zero; anything else means the first."""

    worker_id: Id
    task_id: Id
    launch_token: str
    attempt: Any = 1


class ClaimAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a claim; `lost`, `canceled` and `busy` are of what the worker said it holds."""

    tasks: list[HandedTask]
    lost: list[str] = []
    canceled: list[str] = []
    busy: list[str] = []


class Attached(msgspec.Struct, frozen=True):
    """What a one-shot token was swapped for. Nothing: the attempt could not have its input, and has failed."""

    tasks: list[HandedTask]


class Refused(msgspec.Struct, frozen=True):
    """A report that the fence refused, and who won instead."""

    task_id: str
    attempt: int
    winner: str


class ExchangeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a whole batch. `lost`, `canceled` and `busy` are of what the worker said it holds; leases of what
    is busy were not renewed this time, because other transactions hold these tasks."""

    tasks: list[HandedTask]
    accepted: int
    refused: list[Refused]
    lost: list[str]
    canceled: list[str]
    draining: bool
    more: bool
    """Another claim could find something at once."""
    lease_seconds: float
    busy: list[str] = []


class AttemptNotes(msgspec.Struct, frozen=True):
    """What one running attempt said, with its lease."""

    task_id: Id
    attempt: int
    lease_token: UUID
    events: list[Any] | None


class NotesRequest(msgspec.Struct, frozen=True):
    """What running attempts said."""

    notes: list[AttemptNotes]


class NotesAnswer(msgspec.Struct, frozen=True):
    """How many notes were read; those after the end of a lease are dropped."""

    accepted: int


class WantedEffect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Asks for the gate of one effect. `digest` stands for `arguments` where those are not sent."""

    task_id: Id
    attempt: int
    lease_token: UUID
    name: str
    key: str | None = None
    ordinal: int = 0
    digest: bytes | None = None
    arguments: msgspec.Raw = NOTHING
    compensation: str | None = None


class GateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Open: send it under `idempotency_key`. Shut: answered before, with a receipt or, if `refused`, a refusal."""

    idempotency_key: str
    open: bool
    refused: bool
    receipt: msgspec.Raw
    code: str
    message: str


class EffectAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of sending."""

    task_id: Id
    attempt: int
    lease_token: UUID
    idempotency_key: str
    state: Literal["done", "refused", "unknown"]
    receipt: msgspec.Raw = NOTHING
    code: str | None = None
    message: str | None = None


class StepStored(msgspec.Struct, frozen=True):
    """It is on record."""

    kept: bool = True


class KeptStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Keeps the result of one step. `digest` stands for `arguments` where those are not sent."""

    task_id: Id
    attempt: int
    lease_token: UUID
    name: str
    output: msgspec.Raw
    digest: bytes | None = None
    arguments: msgspec.Raw = NOTHING


class StepView(msgspec.Struct, frozen=True):
    name: str
    digest: bytes
    output: msgspec.Raw


class Recalled(msgspec.Struct, frozen=True):
    """What earlier attempts of this generation kept."""

    steps: list[StepView]


class WaitAnswer(msgspec.Struct, frozen=True):
    """The answer to a wait. `work` false: the time is over, ask again. `stop`: an attempt of this worker was asked to
    stop; the next beat says which."""

    work: bool
    draining: bool = False
    stop: bool = False
