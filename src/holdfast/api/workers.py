"""The worker contract: register, claim, beat, complete, or all of it at once; and wait for work.

Whoever waits is let go when it hangs up, so that nothing is claimed for nobody.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from dataclasses import fields
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response

from holdfast import wire
from holdfast.api.edge import Asked, Endpoint, reply
from holdfast.api.identity import Access
from holdfast.core import limits
from holdfast.core.access import require_queues
from holdfast.core.circuit import Breaker
from holdfast.core.failure import Failure, Said
from holdfast.core.outcome import Canceled, Completed, Failed, Lost, Outcome, Released, TimedOut
from holdfast.core.policy import RetryPolicy
from holdfast.core.quota import Quota
from holdfast.dispatcher.contract import (
    NOTHING,
    WAIT_SECONDS_MAX,
    Batch,
    Beaten,
    Claim,
    Completion,
    Declared,
    Exchanged,
    Handed,
    Hint,
    Id,
    Lease,
    Leaving,
    Pulsed,
    Refused,
    Register,
    Registered,
    Reported,
    Terms,
    Wait,
)
from holdfast.dispatcher.guard import Guards, declare_guards
from holdfast.dispatcher.probe import LABEL as PROBE_LABEL
from holdfast.dispatcher.remote_reports import Done
from holdfast.errors import Conflict, Invalid
from holdfast.net.address import Rules
from holdfast.net.guarded import check_url

ENVELOPE_BYTES = 512 * 1024
EXCHANGE_BYTES_MAX = 64 * 1024 * 1024
REGISTER_BYTES_MAX = 8 * 1024 * 1024
NOTE_BYTES_MAX = 16 * 1024
EVENTS_MAX = 1_000
NAMES_MAX = 10_000
SLOTS_MAX = 100_000
LABELS_BYTES_MAX = 8 * 1024

T = TypeVar("T")


async def terms(asked: Asked) -> Response:
    """What a worker has to keep to."""
    worker, bounds = asked.engine.settings.worker, asked.engine.settings.limits
    return reply(
        Terms(
            lease_seconds=worker.lease_seconds,
            heartbeat_seconds=worker.heartbeat_seconds,
            output_bytes_max=bounds.output_bytes_max,
        )
    )


async def register(asked: Asked) -> Response:
    """A new incarnation of a worker, with what its code says about its actions."""
    body = await asked.body(Register, bytes_max=REGISTER_BYTES_MAX)
    if not 1 <= body.slots <= SLOTS_MAX or max(len(body.actions), len(body.queues or ())) > NAMES_MAX:
        raise Invalid(
            f"A worker has 1 to {SLOTS_MAX} slots, and at most {NAMES_MAX} actions and queues.", code="invalid_worker"
        )
    if body.labels.get(PROBE_LABEL):
        await check_url(body.labels[PROBE_LABEL], Rules.of(asked.engine.settings.egress))
    labels = {**body.labels, "runtimes": body.runtimes} if body.runtimes else body.labels
    queues = asked.caller.served(body.queues)
    await _declare(asked, body)
    worker_id = await asked.workers.register(
        name=limits.valid_worker_id(body.worker_id or asked.caller.actor),
        actions=body.actions,
        queues=queues,
        slots=body.slots,
        version=body.version[: limits.NAME_CHARACTERS_MAX],
        labels=wire.encode(labels, bytes_max=LABELS_BYTES_MAX, what="labels").decode(),
    )
    worker = asked.engine.settings.worker
    return reply(
        Registered(
            worker_id=str(worker_id), lease_seconds=worker.lease_seconds, heartbeat_seconds=worker.heartbeat_seconds
        )
    )


async def _declare(asked: Asked, body: Register) -> None:
    """Keep what the worker's code says about its actions, all checked before the first is kept."""
    if unnamed := {one.action for one in body.declares} - set(body.actions):
        raise Invalid(f"{min(unnamed)[:80]} is declared and not served.", code="invalid_worker")
    await _require_own(asked, body)
    declared = [(one, _policy(one, asked)) for one in body.declares]
    guards = {one.action: Guards(breaker=Breaker.of(one.breaker), quota=Quota.of(one.quota)) for one in body.declares}
    engine = asked.engine
    for one, policy in declared:
        action, queue = limits.valid_action(one.action), limits.valid_queue(one.queue)
        await engine.catalog.declare(engine.tenant_id, action, queue, policy, body.version)
    if guards:
        await declare_guards(engine, engine.tenant_id, guards)


async def _require_own(asked: Asked, body: Register) -> None:
    """A token for some queues declares no action of another queue, and takes none away from where it is."""
    allowed = asked.caller.queues
    if allowed is None:
        return
    require_queues(allowed, {one.queue for one in body.declares})
    for one in body.declares:
        known = await asked.engine.catalog.declared(asked.engine.tenant_id, one.action)
        require_queues(allowed, () if known is None else (known[0],))


def _policy(declared: Declared, asked: Asked) -> RetryPolicy:
    known = {field.name for field in fields(RetryPolicy)}
    if unknown := declared.policy.keys() - known:
        raise Invalid(f"A policy has no {min(unknown)[:80]}.", code="invalid_policy")
    try:
        return RetryPolicy.from_json({**asked.engine.default_policy.to_json(), **declared.policy}).validated()
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise Invalid(
            f"The policy of {declared.action[:80]} cannot be used: {error}.", code="invalid_policy"
        ) from error


async def leave(asked: Asked) -> Response:
    """A worker is gone, and what it held is free."""
    body = await asked.body(Leaving)
    return reply({"known": await asked.workers.retire(worker_number(body.worker_id), allowed=asked.caller.queues)})


async def claim(asked: Asked) -> Response:
    """One named task, or as many as are wanted of some queues."""
    body = await asked.body(Claim)
    workers, worker_id = asked.workers, worker_number(body.worker_id)
    allowed = asked.caller.queues
    if body.task_id is not None:
        tasks = await workers.claim_named(worker_id, limits.task_number(body.task_id), allowed=allowed)
        return reply({"tasks": await _with_capabilities(asked, tasks)})
    seconds, limit = _wait_seconds(body.wait_seconds), _limit(body.limit, lowest=1)
    taking = workers.claim(worker_id, queues=body.queues, limit=limit, wait_seconds=seconds, allowed=allowed)
    tasks = await (_while_here(asked, taking) if seconds else taking)
    return reply({"tasks": await _with_capabilities(asked, tasks)})


async def wait(asked: Asked) -> Response:
    """Whether there may be work, as soon as there is."""
    body = await asked.body(Wait)
    seconds = _wait_seconds(body.wait_seconds)
    waiting = asked.workers.wait(
        worker_number(body.worker_id), queues=body.queues, wait_seconds=seconds, allowed=asked.caller.queues
    )
    work, draining = await _while_here(asked, waiting)
    return reply(Hint(work, draining))


async def heartbeat(asked: Asked) -> Response:
    """Extend one lease."""
    body = await asked.body(Lease)
    task_id, attempt, lease_token = lease_of(body)
    asked.caller.require_attempt(task_id, attempt)
    renewed = await asked.workers.heartbeat(task_id, attempt, lease_token)
    capability_token = await asked.house.door.capabilities.renewed(
        asked.caller.tenant_id, task_id, attempt, renewed.lease_expires_at
    )
    return reply({**msgspec.structs.asdict(renewed), "capability_token": capability_token})


async def heartbeats(asked: Asked) -> Response:
    """Extend everything that a worker holds."""
    body = await asked.body(Pulsed, bytes_max=REGISTER_BYTES_MAX)
    if len(body.task_ids) != len(body.lease_tokens) or len(body.task_ids) > SLOTS_MAX:
        raise Invalid(f"At most {SLOTS_MAX} leases, each with its token.", code="invalid_batch")
    beat = await asked.workers.beat(
        worker_number(body.worker_id),
        [limits.task_number(task_id) for task_id in body.task_ids],
        body.lease_tokens,
        health=wire.encode(body.health, bytes_max=LABELS_BYTES_MAX, what="health").decode(),
    )
    return reply(
        Beaten(
            renewed=[str(task_id) for task_id in beat.renewed],
            canceled=[str(task_id) for task_id in beat.canceled],
            worker_state=beat.worker_state,
            crew=beat.crew,
            rank=beat.rank,
            lease_seconds=beat.lease_seconds,
        )
    )


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
    named = (body.held or (), body.completions, body.known or ())
    if max(map(len, named)) > limits.BATCH_MAX:
        raise Invalid(f"At most {limits.BATCH_MAX} at once.", code="invalid_batch", advice="Send several batches.")
    seconds = _wait_seconds(body.wait_seconds)
    doing = asked.workers.exchange(
        worker_number(body.worker_id),
        held=None if body.held is None else [limits.task_number(task_id) for task_id in body.held],
        known=None if body.known is None else _known(body),
        allowed=asked.caller.queues,
        dones=[_done(one, bytes_max) for one in body.completions],
        queues=body.queues,
        limit=_limit(body.limit, lowest=0),
        wait_seconds=seconds,
    )
    done = await (_while_here(asked, doing) if seconds else doing)
    return reply(
        Exchanged(
            tasks=await _with_capabilities(asked, done.tasks),
            accepted=done.accepted,
            refused=[Refused(str(one.task_id), one.attempt, one.winner) for one in done.refused],
            lost=[str(task_id) for task_id in done.lost],
            canceled=[str(task_id) for task_id in done.canceled],
            draining=done.is_draining,
            more=done.may_have_more,
            lease_seconds=asked.engine.settings.worker.lease_seconds,
        )
    )


async def _with_capabilities(asked: Asked, tasks: list[Handed]) -> list[Handed]:
    """With the right to speak for each attempt, for those who run it; who keeps leases by heartbeats needs none."""
    if not tasks or tasks[0].lease_expires_at is None:
        return tasks
    return await asked.house.door.capabilities.given_to(tasks, asked.caller.tenant_id)


def _known(body: Batch) -> list[tuple[int, Any]]:
    known = body.known or []
    if len(known) != len(body.known_tasks):
        raise Invalid("Every known token goes with its task in known_tasks.", code="invalid_batch")
    return [(limits.task_number(task_id), token) for task_id, token in zip(body.known_tasks, known, strict=True)]


async def _while_here(asked: Asked, work: Coroutine[Any, Any, T]) -> T:
    """Do something that may take its time, as long as the caller waits for it."""
    doing = asyncio.create_task(work)
    leaving = asyncio.ensure_future(asked.request.receive())
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise Invalid("The caller hung up.", code="caller_left")
        return await doing
    finally:
        for task in (doing, leaving):
            task.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)


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


def lease_of(body: Any) -> tuple[int, int, Any]:
    """The lease that a body names."""
    return limits.task_number(body.task_id), _attempt(body.attempt), body.lease_token


def _limit(limit: int, *, lowest: int) -> int:
    if not lowest <= limit <= limits.BATCH_MAX:
        raise Invalid(f"The limit must be from {lowest} to {limits.BATCH_MAX}, not {limit}.", code="invalid_limit")
    return limit


def _wait_seconds(seconds: float) -> float:
    if not (math.isfinite(seconds) and 0 <= seconds <= WAIT_SECONDS_MAX):
        raise Invalid(f"wait_seconds must be from 0 to {WAIT_SECONDS_MAX:g}, not {seconds:g}.", code="invalid_wait")
    return seconds


def _done(body: Completion, bytes_max: int) -> Done:
    if body.status == "completed" and body.outputs == NOTHING and not body.events:
        # The usual case of a drain: thousands a second.
        return Done(
            task_id=limits.task_number(body.task_id),
            attempt=_attempt(body.attempt),
            lease_token=body.lease_token,
            outcome=_NO_OUTPUT,
        )
    if len(body.events) > EVENTS_MAX:
        raise Invalid(f"At most {EVENTS_MAX} events go with one completion.", code="invalid_batch")
    return Done(
        task_id=limits.task_number(body.task_id),
        attempt=_attempt(body.attempt),
        lease_token=body.lease_token,
        outcome=_outcome(body, bytes_max),
        notes=[(said.kind, note(said.detail)) for said in body.events],
        input=None if body.input == NOTHING else plain(body.input, bytes_max=bytes_max, what="input"),
    )


_NO_OUTPUT = Completed(bytes(NOTHING))


def note(detail: dict[str, Any]) -> str:
    return wire.encode(detail, bytes_max=NOTE_BYTES_MAX, what="note").decode()


def plain(raw: msgspec.Raw, *, bytes_max: int, what: str) -> bytes:
    """JSON of somebody else as we store it: checked, without its blanks."""
    given = bytes(raw)
    if given == b"null":
        return given
    try:
        return wire.encode(wire.decode(given), bytes_max=bytes_max, what=what)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"The {what} cannot be used: {error}.", code="invalid_body") from error


def _outcome(body: Completion, bytes_max: int) -> Outcome:
    match body.status:
        case "completed" | "succeeded":
            return Completed(plain(body.outputs, bytes_max=bytes_max, what="output"))
        case "failed":
            return Failed(_failure(body.error))
        case "timed_out":
            return TimedOut(_failure(body.error))
        case "lost":
            return Lost(_failure(body.error))
        case "canceled":
            return Canceled()
        case "released":
            return Released()


def _failure(given: Reported | None) -> Failure:
    error = given or Reported(message="The worker gave no reason.")
    seconds = error.retry_after_seconds
    if seconds is not None and not (math.isfinite(seconds) and 0 <= seconds <= 10 * 365 * 86400):
        raise Invalid("retry_after_seconds must be a time that can be waited for.", code="invalid_retry_after")
    return Failure(
        code=error.code,
        message=error.message,
        type=error.type,
        traceback=error.traceback,
        said=None if error.said is None else Said(error.said),
        retry_after=None if seconds is None else timedelta(seconds=seconds),
        bases=tuple(error.bases),
        frames=tuple(error.frames),
    )


ENDPOINTS = (
    Endpoint(method="GET", path="/internal/terms", access=Access.WORKER, handler=terms),
    Endpoint(method="POST", path="/internal/workers", access=Access.WORKER, handler=register),
    Endpoint(method="POST", path="/internal/leave", access=Access.WORKER, handler=leave),
    Endpoint(method="POST", path="/internal/task-claim", access=Access.WORKER, handler=claim),
    Endpoint(method="POST", path="/internal/wait", access=Access.WORKER, handler=wait),
    Endpoint(method="POST", path="/internal/heartbeat", access=Access.ATTEMPT, handler=heartbeat),
    Endpoint(method="POST", path="/internal/heartbeats", access=Access.WORKER, handler=heartbeats),
    Endpoint(method="POST", path="/internal/task-complete", access=Access.ATTEMPT, handler=complete),
    Endpoint(method="POST", path="/internal/exchange", access=Access.WORKER, handler=exchange),
)
