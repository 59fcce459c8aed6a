"""For whoever watches the server: does it live, and is it of use."""

from __future__ import annotations

from starlette.responses import Response

from holdfast.server.auth.caller import Access
from holdfast.server.endpoint import ApiRequest, Endpoint, reply


async def healthz(_asked: ApiRequest) -> Response:
    """This process answers."""
    return reply({"status": "ok"})


async def readyz(asked: ApiRequest) -> Response:
    """It can reach its database, whose schema it knows."""
    await asked.server_state.readiness.require()
    return reply({"status": "ready"})


ENDPOINTS = (
    Endpoint(method="GET", path="/healthz", access=Access.PUBLIC, handler=healthz),
    Endpoint(method="GET", path="/readyz", access=Access.PUBLIC, handler=readyz),
)
