"""Liveness (`/healthz`) and readiness (`/readyz`) probes."""

from __future__ import annotations

from starlette.responses import Response

from holdfast.server.auth.caller import Access
from holdfast.server.endpoint import ApiRequest, Endpoint, reply


async def healthz(_api_request: ApiRequest) -> Response:
    """Report that this process answers."""
    return reply({"status": "ok"})


async def readyz(request: ApiRequest) -> Response:
    """Report that the server reaches its database and that the schema is current."""
    await request.server_state.readiness.require()
    return reply({"status": "ready"})


ENDPOINTS = (
    Endpoint(method="GET", path="/healthz", access=Access.PUBLIC, handler=healthz),
    Endpoint(method="GET", path="/readyz", access=Access.PUBLIC, handler=readyz),
)
