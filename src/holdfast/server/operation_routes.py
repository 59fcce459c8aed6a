"""Operations as routes: decode the request from path, query and body, execute it, and encode its result."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, get_type_hints

import msgspec
from starlette.responses import Response

from holdfast.client.client import Client
from holdfast.errors import Forbidden, Invalid
from holdfast.operations.context import OperationContext, perform
from holdfast.operations.idempotency import with_key
from holdfast.operations.operation import Operation, Request
from holdfast.operations.registry import OPERATIONS
from holdfast.server.disconnect import until_disconnect_or_close
from holdfast.server.endpoint import ApiRequest, Endpoint, reply
from holdfast.store.catalog import DEFAULT_TENANT_ID

KEY_HEADER = "idempotency-key"


def endpoint(operation: Operation[Any, Any]) -> Endpoint:
    """Return the endpoint of an operation."""

    async def answer(api_request: ApiRequest) -> Response:
        request = await decode(operation, api_request)
        key = api_request.request.headers.get(KEY_HEADER)
        with (
            api_request.server_state.long_reads.one() if operation.is_long else nullcontext(),
            _client(operation, api_request) as client,
        ):
            request, once = with_key(operation, request, key, client.engine.tenant_id)
            doing = perform(operation, OperationContext(client, api_request.caller.actor, once), request)
            if operation.in_vain is not None:
                doing = until_disconnect_or_close(api_request, doing, operation.in_vain(request))
            found = await doing
        return reply(found, operation.status)

    return Endpoint(method=operation.method, path=operation.path, access=operation.access, handler=answer)


def _client(operation: Operation[Any, Any], api_request: ApiRequest) -> AbstractContextManager[Client]:
    """Return the client to use: for the caller's tenant, or for the whole installation.

    Only callers of the default tenant may use installation-wide operations.
    """
    if not operation.is_whole:
        return api_request.client()
    if api_request.caller.tenant_id != DEFAULT_TENANT_ID:
        raise Forbidden(
            "This operation affects the whole installation.",
            code="installation_only",
            advice="Ask an administrator of the default tenant.",
        )
    return nullcontext(api_request.server_state.client)


async def decode(operation: Operation[Any, Any], api_request: ApiRequest) -> Request:
    """Decode the request into the operation's type; raise `Invalid` for anything else."""
    values_by_field = await _body(operation, api_request) if operation.has_body else _query(operation, api_request)
    if taken := sorted(set(values_by_field) & set(operation.path_fields)):
        raise Invalid(f"The path already sets {', '.join(taken)}.", code=_code(operation))
    kinds = get_type_hints(operation.request)
    try:
        # Path values are text; values of a body have their own types.
        named = {
            name: msgspec.convert(api_request.request.path_params[name], kinds[name], strict=False)
            for name in operation.path_fields
        }
        found = msgspec.convert(values_by_field | named, operation.request, strict=operation.has_body)
    except msgspec.ValidationError as error:
        fields = ", ".join(operation.other_fields) or "nothing"
        raise Invalid(
            f"The request cannot be used: {error}.", code=_code(operation), advice=f"It takes {fields}."
        ) from error
    assert isinstance(found, Request)
    return found


def _code(operation: Operation[Any, Any]) -> str:
    return "invalid_body" if operation.has_body else "invalid_query"


async def _body(operation: Operation[Any, Any], api_request: ApiRequest) -> dict[str, Any]:
    """Return the fields of the body; empty without one."""
    headers = api_request.request.headers
    if api_request.request.query_params:
        raise Invalid("A POST takes its fields in the body.", code="invalid_query", advice="Remove the query string.")
    if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
        return {}
    one_bytes_max = api_request.engine.settings.limits.input_bytes_max + 64 * 1024
    bytes_max = (max if operation.is_bulk else min)(operation.body_bytes_max, one_bytes_max)
    return await api_request.body(dict[str, Any], bytes_max=bytes_max)


def _query(operation: Operation[Any, Any], api_request: ApiRequest) -> dict[str, Any]:
    """Return the fields of the query; only list fields may be repeated."""
    query, lists = api_request.request.query_params, operation.list_fields()
    values_by_field: dict[str, Any] = {}
    for name in query:
        values = query.getlist(name)
        if name not in lists and len(values) > 1:
            raise Invalid(f"{name[:80]} is given {len(values)} times.", code="invalid_query")
        values_by_field[name] = values if name in lists else values[0]
    return values_by_field


ENDPOINTS = tuple(endpoint(operation) for operation in OPERATIONS)
