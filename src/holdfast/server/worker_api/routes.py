"""The worker contract for registered workers: claim, heartbeat, complete, all of it in one exchange, and long poll.

A waiting request is cancelled when its client disconnects, so no task is claimed for a closed connection.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from holdfast.codec import json_codec
from holdfast.core.values import bounds
from holdfast.errors import Invalid
from holdfast.protocol.worker import (
    WAIT_SECONDS_MAX,
    Batch,
    BeatAnswer,
    BeatRequest,
    Claim,
    ClaimAnswer,
    Completion,
    ExchangeAnswer,
    ExtendAnswer,
    HandedTask,
    Id,
    LeaseProof,
    Refused,
    ReportAccepted,
    Wait,
    WaitAnswer,
)
from holdfast.server.auth.caller import Access
from holdfast.server.disconnect import until_disconnect
from holdfast.server.endpoint import ApiRequest, reply, worker_call
from holdfast.server.worker_api.registration import LABELS_BYTES_MAX, REGISTER_BYTES_MAX, SLOTS_MAX
from holdfast.server.worker_api.reports import ENVELOPE_BYTES, done_of, lease_of, worker_number

EXCHANGE_BYTES_MAX = 64 * 1024 * 1024


async def claim(request: ApiRequest) -> Response:
    """Claim one named task, or up to a limit of tasks from some queues."""
    body = await request.body(Claim)
    workers, worker_id = request.workers, worker_number(body.worker_id)
    right = request.caller.worker_right
    if body.task_id is not None:
        tasks = await workers.claim_named(worker_id, bounds.task_number(body.task_id), right=right)
        return reply(ClaimAnswer(tasks=await _with_capabilities(request, tasks)))
    seconds, limit = _wait_seconds(body.wait_seconds), _limit(body.limit, lowest=1)
    _require_few(body.held or ())
    taking = workers.exchange(
        worker_id,
        held=_numbers(body.held),
        dones=(),
        queues=body.queues,
        limit=limit,
        wait_seconds=seconds,
        with_lease_ends=True,
        right=right,
        check_credentials=request.require_valid_credentials,
    )
    done = await (until_disconnect(request, taking) if seconds else taking)
    tasks = await _with_capabilities(request, done.tasks)
    lost, canceled, busy = (list(map(str, some)) for some in (done.lost, done.canceled, done.busy))
    return reply(ClaimAnswer(tasks=tasks, lost=lost, canceled=canceled, busy=busy))


async def wait(request: ApiRequest) -> Response:
    """Wait until there may be work."""
    body = await request.body(Wait)
    seconds = _wait_seconds(body.wait_seconds)
    waiting = request.workers.wait(
        worker_number(body.worker_id),
        queues=body.queues,
        wait_seconds=seconds,
        right=request.caller.worker_right,
        takes_work=body.takes_work,
    )
    return reply(await until_disconnect(request, waiting))


async def heartbeat(request: ApiRequest) -> Response:
    """Extend one lease."""
    body = await request.body(LeaseProof)
    task_id, attempt, lease_token = lease_of(body)
    request.caller.require_attempt(task_id, attempt)
    renewed = await request.workers.heartbeat(task_id, attempt, lease_token)
    capability_token = await request.server_state.authenticator.capabilities.renewed(
        request.caller.tenant_id, task_id, attempt, renewed.lease_expires_at, request.caller.token_id
    )
    return reply(
        ExtendAnswer(
            lease_expires_at=renewed.lease_expires_at,
            cancel_requested=renewed.cancel_requested,
            capability_token=capability_token,
            busy=renewed.is_busy,
        )
    )


async def heartbeats(request: ApiRequest) -> Response:
    """Extend all leases of a worker."""
    body = await request.body(BeatRequest, bytes_max=REGISTER_BYTES_MAX)
    for ids, tokens in ((body.task_ids, body.lease_tokens), (body.ended_ids, body.ended_tokens)):
        if len(ids) != len(tokens) or len(ids) > SLOTS_MAX:
            raise Invalid(f"At most {SLOTS_MAX} leases, each with its token.", code="invalid_batch")
    beat = await request.workers.beat(
        worker_number(body.worker_id),
        [bounds.task_number(task_id) for task_id in body.task_ids],
        body.lease_tokens,
        health=json_codec.encode(body.health, bytes_max=LABELS_BYTES_MAX, what="health").decode(),
        ended=dict(zip(map(bounds.task_number, body.ended_ids), body.ended_tokens, strict=True)),
        right=request.caller.worker_right,
    )
    return reply(
        BeatAnswer(
            renewed=[str(task_id) for task_id in beat.renewed],
            canceled=[str(task_id) for task_id in beat.canceled],
            worker_state=beat.worker_state,
            crew=beat.peers,
            rank=beat.rank,
            lease_seconds=beat.lease_seconds,
            kept=[str(task_id) for task_id in beat.kept],
            busy=[str(task_id) for task_id in beat.busy],
        )
    )


async def complete(request: ApiRequest) -> Response:
    """Settle one attempt."""
    bytes_max = request.engine.settings.limits.output_bytes_max
    body = await request.body(Completion, bytes_max=bytes_max + ENVELOPE_BYTES)
    done = done_of(body, bytes_max)
    request.caller.require_attempt(done.task_id, done.attempt)
    await request.workers.complete(done)
    return reply(ReportAccepted(str(done.task_id), done.attempt))


async def exchange(request: ApiRequest) -> Response:
    """Settle, renew and claim in one call."""
    bytes_max = request.engine.settings.limits.output_bytes_max
    body = await request.body(Batch, bytes_max=max(EXCHANGE_BYTES_MAX, bytes_max + ENVELOPE_BYTES))
    _require_few(body.held or (), body.completions, body.known or ())
    seconds = _wait_seconds(body.wait_seconds)
    doing = request.workers.exchange(
        worker_number(body.worker_id),
        held=_numbers(body.held),
        known=None if body.known is None else _known(body),
        right=request.caller.worker_right,
        dones=[done_of(completion, bytes_max) for completion in body.completions],
        queues=body.queues,
        limit=_limit(body.limit, lowest=0),
        wait_seconds=seconds,
        check_credentials=request.require_valid_credentials,
    )
    done = await (until_disconnect(request, doing) if seconds else doing)
    return reply(
        ExchangeAnswer(
            tasks=await _with_capabilities(request, done.tasks),
            accepted=done.accepted,
            refused=[Refused(str(refusal.task_id), refusal.attempt, refusal.winner) for refusal in done.refused],
            lost=[str(task_id) for task_id in done.lost],
            canceled=[str(task_id) for task_id in done.canceled],
            busy=[str(task_id) for task_id in done.busy],
            draining=done.is_draining,
            more=done.may_have_more,
            lease_seconds=request.engine.settings.worker.lease_seconds,
        )
    )


async def _with_capabilities(request: ApiRequest, tasks: list[HandedTask]) -> list[HandedTask]:
    """Add a capability token to each task. Workers that send heartbeats for all their leases need none."""
    if not tasks or tasks[0].lease_expires_at is None:
        return tasks
    return await request.server_state.authenticator.capabilities.given_to(
        tasks, request.caller.tenant_id, request.caller.token_id
    )


def _require_few(*named: Sequence[Any]) -> None:
    if max(map(len, named)) > bounds.BATCH_MAX:
        raise Invalid(f"At most {bounds.BATCH_MAX} at once.", code="invalid_batch", advice="Send several batches.")


def _numbers(held: Sequence[Id] | None) -> list[int] | None:
    return None if held is None else [bounds.task_number(task_id) for task_id in held]


def _known(body: Batch) -> list[tuple[int, Any]]:
    known = body.known or []
    if len(known) != len(body.known_tasks):
        raise Invalid("Every token in known needs its task in known_tasks.", code="invalid_batch")
    return [(bounds.task_number(task_id), token) for task_id, token in zip(body.known_tasks, known, strict=True)]


def _limit(limit: int, *, lowest: int) -> int:
    if not lowest <= limit <= bounds.BATCH_MAX:
        raise Invalid(f"The limit must be from {lowest} to {bounds.BATCH_MAX}, not {limit}.", code="invalid_limit")
    return limit


def _wait_seconds(seconds: float) -> float:
    if not (math.isfinite(seconds) and 0 <= seconds <= WAIT_SECONDS_MAX):
        raise Invalid(f"wait_seconds must be from 0 to {WAIT_SECONDS_MAX:g}, not {seconds:g}.", code="invalid_wait")
    return seconds


ENDPOINTS = (
    worker_call("/internal/task-claim", claim, takes=Claim, answers=ClaimAnswer),
    worker_call("/internal/wait", wait, takes=Wait, answers=WaitAnswer),
    worker_call("/internal/heartbeat", heartbeat, takes=LeaseProof, answers=ExtendAnswer, access=Access.ATTEMPT),
    worker_call("/internal/heartbeats", heartbeats, takes=BeatRequest, answers=BeatAnswer),
    worker_call("/internal/task-complete", complete, takes=Completion, answers=ReportAccepted, access=Access.ATTEMPT),
    worker_call("/internal/exchange", exchange, takes=Batch, answers=ExchangeAnswer),
)
