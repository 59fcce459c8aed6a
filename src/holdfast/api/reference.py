"""The OpenAPI document, for programs that read it."""

from __future__ import annotations

from functools import cache

import msgspec
from starlette.responses import Response

from holdfast.api.edge import Asked, Endpoint
from holdfast.api.identity import Access
from holdfast.desk.openapi import document


async def openapi(_asked: Asked) -> Response:
    """Every operation with its types."""
    return Response(_encoded(), media_type="application/json")


@cache
def _encoded() -> bytes:
    return msgspec.json.encode(document())


ENDPOINTS = (Endpoint(method="GET", path="/api/openapi.json", access=Access.VIEWER, handler=openapi),)
