"""The worker contract: register, claim, beat, complete, or all of it at once."""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

import msgspec
from starlette.responses import Response

from holdfast import wire
from holdfast.api.edge import Asked, Endpoint, reply
from holdfast.api.identity import Access
from holdfast.core import limits
from holdfast.core.failure import FAILED_CODE, Failure
from holdfast.core.outcome import Canceled, Completed, Failed, Outcome, Released
from holdfast.dispatcher.probe import LABEL as PROBE_LABEL
from holdfast.dispatcher.remote import Done
from holdfast.errors import Conflict, Invalid
from holdfast.net.address import Rules
from holdfast.net.guarded import check_url

ENVELOPE_BYTES = 512 * 1024
EXCHANGE_BYTES_MAX = 64 * 1024 * 1024
NOTE_BYTES_MAX = 16 * 1024
EVENTS_MAX = 1_000
NAMES_MAX = 10_000
SLOTS_MAX = 100_000
LABELS_BYTES_MAX = 8 * 1024

Id = str | int


class Register(msgspec.Struct, frozen=True):
    worker_id: str = ""
    queues: list[str] | None = None
    actions: list[str] = []
    runtimes: list[str] = []
    slots: int = 1
    version: str = ""
    labels: dict[str, str] = {}


class Claim(msgspec.Struct, frozen=True):
    worker_id: Id
    task_id: Id | None = None
    queues: list[str] | None = None
    limit: int = 1


class Beat(msgspec.Struct, frozen=True):
    task_id: Id
    attempt: int
    lease_token: UUID


class Reported(msgspec.Struct, frozen=True):
    """What a worker says about a failure."""

    code: str = FAILED_CODE
    message: str = ""
    type: str = ""
    traceback: str = ""


class Said(msgspec.Struct, frozen=True):
    """Something an attempt said while it ran."""

    kind: Literal["log", "progress"]
    detail: dict[str, Any]


class Completion(msgspec.Struct, frozen=True):
    task_id: Id
    attempt: int
    lease_token: UUID
    status: Literal["completed", "succeeded", "failed", "canceled", "released"]
    outputs: Any = None
    error: Reported | None = None
    events: list[Said] = []


class Batch(msgspec.Struct, frozen=True):
    worker_id: Id
    held: list[Id] = []
    completions: list[Completion] = []
    queues: list[str] | None = None
    limit: int = 0


async def register(asked: Asked) -> Response:
    """A new incarnation of a worker."""
    body = await asked.body(Register, bytes_max=ENVELOPE_BYTES)
    if not 1 <= body.slots <= SLOTS_MAX or max(len(body.actions), len(body.queues or ())) > NAMES_MAX:
        raise Invalid(
            f"A worker has 1 to {SLOTS_MAX} slots, and at most {NAMES_MAX} actions and queues.", code="invalid_worker"
        )
    if body.labels.get(PROBE_LABEL):
        await check_url(body.labels[PROBE_LABEL], Rules.of(asked.engine.settings.egress))
    labels = {**body.labels, "runtimes": body.runtimes} if body.runtimes else body.labels
    worker_id = await asked.workers.register(
        name=limits.valid_worker_id(body.worker_id or asked.caller.actor),
        actions=body.actions,
        queues=asked.caller.served(body.queues),
        slots=body.slots,
        version=body.version[: limits.NAME_CHARACTERS_MAX],
        labels=wire.encode(labels, bytes_max=LABELS_BYTES_MAX, what="labels").decode(),
    )
    worker = asked.engine.settings.worker
    seconds = {"lease_seconds": worker.lease_seconds, "heartbeat_seconds": worker.heartbeat_seconds}
    return reply({"worker_id": str(worker_id), **seconds})


async def claim(asked: Asked) -> Response:
    """One named task, or as many as are wanted of some queues."""
    body = await asked.body(Claim)
    workers, worker_id = asked.workers, worker_number(body.worker_id)
    allowed = asked.caller.queues
    if body.task_id is not None:
        tasks = await workers.claim_named(worker_id, limits.task_number(body.task_id), allowed=allowed)
    else:
        limit = _limit(body.limit, lowest=1)
        tasks = await workers.claim(worker_id, queues=body.queues, limit=limit, allowed=allowed)
    return reply({"tasks": await asked.house.door.capabilities.given_to(tasks, asked.caller.tenant_id)})


async def heartbeat(asked: Asked) -> Response:
    """Extend one lease."""
    body = await asked.body(Beat)
    task_id, attempt = limits.task_number(body.task_id), _attempt(body.attempt)
    asked.caller.require_attempt(task_id, attempt)
    renewed = await asked.workers.heartbeat(task_id, attempt, body.lease_token)
    capability_token = await asked.house.door.capabilities.renewed(
        asked.caller.tenant_id, task_id, attempt, renewed.lease_expires_at
    )
    return reply({**msgspec.structs.asdict(renewed), "capability_token": capability_token})


async def complete(asked: Asked) -> Response:
    """Settle one attempt."""
    bytes_max = asked.engine.settings.limits.output_bytes_max
    body = await asked.body(Completion, bytes_max=bytes_max + ENVELOPE_BYTES)
    done = _done(body, bytes_max)
    asked.caller.require_attempt(done.task_id, done.attempt)
    await asked.workers.complete(done)
    return reply({"task_id": str(done.task_id), "attempt": done.attempt, "accepted": True})


async def exchange(asked: Asked) -> Response:
    """Settle, renew and claim in one call."""
    bytes_max = asked.engine.settings.limits.output_bytes_max
    body = await asked.body(Batch, bytes_max=max(EXCHANGE_BYTES_MAX, bytes_max + ENVELOPE_BYTES))
    if max(len(body.held), len(body.completions)) > limits.BATCH_MAX:
        raise Invalid(f"At most {limits.BATCH_MAX} at once.", code="invalid_batch", advice="Send several batches.")
    done = await asked.workers.exchange(
        worker_number(body.worker_id),
        held=[limits.task_number(task_id) for task_id in body.held],
        dones=[_done(one, bytes_max) for one in body.completions],
        queues=body.queues,
        limit=_limit(body.limit, lowest=0),
        allowed=asked.caller.queues,
    )
    return reply(
        {
            "tasks": await asked.house.door.capabilities.given_to(done.tasks, asked.caller.tenant_id),
            "accepted": done.accepted,
            "refused": [
                {"task_id": str(one.task_id), "attempt": one.attempt, "winner": one.winner} for one in done.refused
            ],
            "lost": [str(task_id) for task_id in done.lost],
            "canceled": [str(task_id) for task_id in done.canceled],
            "draining": done.is_draining,
        }
    )


def worker_number(worker_id: Id) -> int:
    """The incarnation that an id means."""
    text = str(worker_id)
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise Conflict(
            f"Worker {text[:80]!r} is not registered.",
            code="worker_not_registered",
            advice="Register (POST /internal/workers) and use the id it answers.",
            reason="unknown_worker",
        )
    return int(text)


def _attempt(attempt: int) -> int:
    if not 0 < attempt < 2**31:
        raise Invalid(f"There is no attempt {attempt}.", code="invalid_attempt")
    return attempt


def _limit(limit: int, *, lowest: int) -> int:
    if not lowest <= limit <= limits.BATCH_MAX:
        raise Invalid(f"The limit must be from {lowest} to {limits.BATCH_MAX}, not {limit}.", code="invalid_limit")
    return limit


def _done(body: Completion, bytes_max: int) -> Done:
    if len(body.events) > EVENTS_MAX:
        raise Invalid(f"At most {EVENTS_MAX} events go with one completion.", code="invalid_batch")
    return Done(
        task_id=limits.task_number(body.task_id),
        attempt=_attempt(body.attempt),
        lease_token=body.lease_token,
        outcome=_outcome(body, bytes_max),
        notes=[
            (said.kind, wire.encode(said.detail, bytes_max=NOTE_BYTES_MAX, what="note").decode())
            for said in body.events
        ],
    )


def _outcome(body: Completion, bytes_max: int) -> Outcome:
    match body.status:
        case "completed" | "succeeded":
            return Completed(wire.encode(body.outputs, bytes_max=bytes_max, what="output"))
        case "failed":
            error = body.error or Reported(message="The worker gave no reason.")
            return Failed(Failure(code=error.code, message=error.message, type=error.type, traceback=error.traceback))
        case "canceled":
            return Canceled()
        case "released":
            return Released()


ENDPOINTS = (
    Endpoint(method="POST", path="/internal/workers", access=Access.WORKER, handler=register),
    Endpoint(method="POST", path="/internal/task-claim", access=Access.WORKER, handler=claim),
    Endpoint(method="POST", path="/internal/heartbeat", access=Access.ATTEMPT, handler=heartbeat),
    Endpoint(method="POST", path="/internal/task-complete", access=Access.ATTEMPT, handler=complete),
    Endpoint(method="POST", path="/internal/exchange", access=Access.WORKER, handler=exchange),
)
