"""An operator's retry of an execution, at the two paths that dashboards use.

Responses are chosen in a fixed order: 401, 403, 404, 409 for its state, 409 for its budget, then 202. The retry itself
is the same operation as `retry_task`. An unreadable store is 502 here, because for a dashboard the database is an
upstream.
"""

from __future__ import annotations

from starlette.responses import Response

from holdfast.errors import NotFound
from holdfast.operations.context import OperationContext, perform
from holdfast.operations.idempotency import with_key
from holdfast.operations.openapi import RetriedExecution
from holdfast.operations.tasks import SteerTask, retry_task
from holdfast.server.auth.caller import Access
from holdfast.server.endpoint import ApiRequest, Endpoint, reply
from holdfast.server.operation_routes import KEY_HEADER, decode

UNREADABLE = "The executions cannot be read."


async def retry(api_request: ApiRequest) -> Response:
    """Run a failed execution again."""
    steer = await decode(retry_task, api_request)
    assert isinstance(steer, SteerTask)
    key = api_request.request.headers.get(KEY_HEADER)
    try:
        with api_request.client() as client:
            request, once = with_key(retry_task, steer, key, client.engine.tenant_id)
            found = await perform(retry_task, OperationContext(client, api_request.caller.actor, once), request)
    except NotFound as error:
        raise NotFound(error.detail, code="execution_not_found", advice=error.advice) from error
    return reply(RetriedExecution(task_id=found.task_id, attempt=found.attempt, status=found.status), retry_task.status)


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/dashboard/executions/{task_id}/retry",
        access=Access.OPERATOR,
        handler=retry,
        unauthorized_code="dashboard_unauthorized",
        unreadable=UNREADABLE,
    ),
    Endpoint(
        method="POST",
        path="/api/v1/executions/{task_id}/retry",
        access=Access.OPERATOR,
        handler=retry,
        unauthorized_code="dashboard_unauthorized",
        unreadable=UNREADABLE,
    ),
)
