"""The OpenAPI documents: one for operators, one for workers."""

from __future__ import annotations

from functools import cache

import msgspec
from starlette.responses import Response

from holdfast import __version__
from holdfast.operations.openapi import document
from holdfast.server.auth.caller import Access
from holdfast.server.endpoint import ApiRequest, Endpoint
from holdfast.server.worker_api.openapi import contract


async def openapi(_api_request: ApiRequest) -> Response:
    """Return every operation with its types."""
    return Response(_operations_document(), media_type="application/json")


@cache
def _operations_document() -> bytes:
    return msgspec.json.encode(document())


async def worker_openapi(_api_request: ApiRequest) -> Response:
    """Return every call of the worker contract with its types."""
    return Response(_worker_document(), media_type="application/json")


@cache
def _worker_document() -> bytes:
    return msgspec.json.encode(contract())


async def front(_api_request: ApiRequest) -> Response:
    """Return where the API is described, for a reader who opens the server's root URL."""
    return Response(_INDEX, media_type="application/json")


_INDEX = msgspec.json.encode(
    {
        "holdfast": __version__,
        "api": "/api/v1/, described at /api/openapi.json",
        "worker_api": "/internal/, described at /internal/openapi.json",
        "authentication": "header Authorization: Bearer TOKEN; with HOLDFAST_ENV=local also X-Dev-User: NAME",
    }
)

ENDPOINTS = (
    Endpoint(method="GET", path="/", access=Access.PUBLIC, handler=front),
    Endpoint(method="GET", path="/api/openapi.json", access=Access.VIEWER, handler=openapi),
    Endpoint(method="GET", path="/internal/openapi.json", access=Access.WORKER, handler=worker_openapi),
)
