"""The endpoint for launched workers without database access: exchanges a one-shot token for a lease."""

from __future__ import annotations

from starlette.responses import Response

from holdfast.core.launching import attempt_of
from holdfast.core.values import bounds
from holdfast.protocol.worker import Attach, Attached
from holdfast.server.endpoint import ApiRequest, reply, worker_call
from holdfast.server.worker_api.reports import worker_number


async def attach(request: ApiRequest) -> Response:
    """Exchange a one-shot token for the lease of the attempt it was made for."""
    body = await request.body(Attach)
    tasks = await request.workers.attach(
        worker_number(body.worker_id),
        bounds.task_number(body.task_id),
        attempt_of(body.attempt),
        body.launch_token,
        right=request.caller.worker_right,
    )
    caller = request.caller
    return reply(
        Attached(
            await request.server_state.authenticator.capabilities.given_to(tasks, caller.tenant_id, caller.token_id)
        )
    )


ENDPOINTS = (worker_call("/internal/attach", attach, takes=Attach, answers=Attached),)
