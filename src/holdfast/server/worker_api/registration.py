"""Registration of remote workers: the terms they must keep to, sign-on with their actions, and sign-off."""

from __future__ import annotations

from dataclasses import fields

from starlette.responses import Response

from holdfast.codec import json_codec
from holdfast.core.identity.access import require_queues
from holdfast.core.limits.breaker import Breaker
from holdfast.core.limits.quota import Quota
from holdfast.core.tasks.action_rules import ActionRules
from holdfast.core.tasks.failure import storable_text
from holdfast.core.tasks.policy import RetryPolicy
from holdfast.core.values import bounds as limits
from holdfast.engine.limits.declare import Guards, declare_guards
from holdfast.engine.workers.declare import declare_action
from holdfast.engine.workers.probe import LABEL as PROBE_LABEL
from holdfast.errors import Invalid
from holdfast.net.address import EgressRules
from holdfast.net.guarded_request import check_url
from holdfast.protocol.worker import (
    WAIT_SECONDS_MAX,
    DeclaredAction,
    LeaveAnswer,
    LeaveRequest,
    Register,
    Registered,
    Terms,
)
from holdfast.server.auth.caller import Access
from holdfast.server.endpoint import ApiRequest, Endpoint, reply, worker_call
from holdfast.server.worker_api.reports import worker_number

REGISTER_BYTES_MAX = 8 * 1024 * 1024
NAMES_MAX = 10_000
SLOTS_MAX = 100_000
LABELS_BYTES_MAX = 8 * 1024


async def terms(request: ApiRequest) -> Response:
    """Return the lease times and limits that a worker must keep to."""
    worker, bounds = request.engine.settings.worker, request.engine.settings.limits
    return reply(
        Terms(
            lease_seconds=worker.lease_seconds,
            heartbeat_seconds=worker.heartbeat_seconds,
            output_bytes_max=bounds.output_bytes_max,
            queues=None if request.caller.queues is None else sorted(request.caller.queues),
        )
    )


async def register(request: ApiRequest) -> Response:
    """Register a worker with what its code declares about its actions."""
    body = await request.body(Register, bytes_max=REGISTER_BYTES_MAX)
    if not 1 <= body.slots <= SLOTS_MAX or max(len(body.actions), len(body.queues or ())) > NAMES_MAX:
        raise Invalid(
            f"A worker has 1 to {SLOTS_MAX} slots, and at most {NAMES_MAX} actions and queues.", code="invalid_worker"
        )
    if body.labels.get(PROBE_LABEL):
        await check_url(body.labels[PROBE_LABEL], EgressRules.of(request.engine.settings.egress))
    labels = {**body.labels, "runtimes": body.runtimes} if body.runtimes else body.labels
    queues = request.caller.served(body.queues)
    version = storable_text(body.version, limits.NAME_CHARACTERS_MAX)
    await _declare(request, body, version)
    worker_id = await request.workers.register(
        name=limits.valid_worker_id(body.worker_id or request.caller.actor),
        actions=body.actions,
        queues=queues,
        slots=body.slots,
        version=version,
        labels=json_codec.encode(labels, bytes_max=LABELS_BYTES_MAX, what="labels").decode(),
        token_id=request.caller.token_id,
    )
    worker = request.engine.settings.worker
    return reply(
        Registered(
            worker_id=str(worker_id),
            lease_seconds=worker.lease_seconds,
            heartbeat_seconds=worker.heartbeat_seconds,
            wait_seconds_max=WAIT_SECONDS_MAX,
        )
    )


async def _declare(request: ApiRequest, body: Register, version: str) -> None:
    """Store what the worker's code declares about its actions, after all of it was checked."""
    if unnamed := {declaration.action for declaration in body.declares} - set(body.actions):
        raise Invalid(f"{min(unnamed)[:80]} is declared, but is not among the worker's actions.", code="invalid_worker")
    await _require_own(request, body)
    for declaration in body.declares:
        limits.valid_priority(declaration.priority)
    declared = [(declaration, _policy(declaration, request)) for declaration in body.declares]
    guards = {
        declaration.action: Guards(breaker=Breaker.of(declaration.breaker), quota=Quota.of(declaration.quota))
        for declaration in body.declares
    }
    engine = request.engine
    for declaration, policy in declared:
        action, queue = limits.valid_action(declaration.action), limits.valid_queue(declaration.queue)
        rules = ActionRules(queue=queue, priority=declaration.priority, policy=policy)
        # A worker that claims over HTTP runs the tasks itself. Launchers are declared by workers with the database.
        await declare_action(engine.catalog, engine.tenant_id, action, rules, version=version, launcher=None)
    if guards:
        await declare_guards(engine, engine.tenant_id, guards)


async def _require_own(request: ApiRequest, body: Register) -> None:
    """Require that a token for some queues neither declares nor moves an action of another queue."""
    allowed = request.caller.queues
    if allowed is None:
        return
    require_queues(allowed, {declaration.queue for declaration in body.declares})
    for declaration in body.declares:
        known = await request.engine.catalog.declared(request.engine.tenant_id, declaration.action)
        require_queues(allowed, () if known is None else (known.queue,))


def _policy(declared: DeclaredAction, request: ApiRequest) -> RetryPolicy:
    known = {field.name for field in fields(RetryPolicy)}
    if unknown := declared.policy.keys() - known:
        raise Invalid(f"A policy has no field {min(unknown)[:80]}.", code="invalid_policy")
    try:
        return RetryPolicy.from_json({**request.engine.policy_defaults.usual.to_json(), **declared.policy}).validated()
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise Invalid(
            f"The policy of {declared.action[:80]} cannot be used: {error}.", code="invalid_policy"
        ) from error


async def leave(request: ApiRequest) -> Response:
    """Retire a worker, and requeue its tasks."""
    body = await request.body(LeaveRequest)
    worker_id, right = worker_number(body.worker_id), request.caller.worker_right
    is_known = await request.workers.retire(worker_id, was_asked_to_stop=body.stopped, right=right)
    return reply(LeaveAnswer(is_known))


ENDPOINTS = (
    Endpoint(method="GET", path="/internal/terms", access=Access.WORKER, handler=terms, answers=Terms),
    worker_call("/internal/workers", register, takes=Register, answers=Registered),
    worker_call("/internal/leave", leave, takes=LeaveRequest, answers=LeaveAnswer),
)
