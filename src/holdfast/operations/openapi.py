"""The OpenAPI document of the operator API, generated from the operations and their types."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from holdfast import __version__
from holdfast.operations.operation import Operation
from holdfast.operations.registry import OPERATIONS
from holdfast.operations.tasks import retry_task

REF = "#/components/schemas/{name}"
KEY_HEADER = "Idempotency-Key"
EXECUTIONS = ("/dashboard/executions/{task_id}/retry", "/api/v1/executions/{task_id}/retry")
EVENTS = "/api/v1/events"


class ProblemBody(msgspec.Struct, frozen=True, kw_only=True):
    """An error as in RFC 9457; further fields have details."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    category: str
    advice: str


class RetriedExecution(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The response of the two dashboard paths, which fix its field names."""

    task_id: str
    attempt: int
    status: str


def document() -> dict[str, Any]:
    """Return the whole document."""
    paths: dict[str, dict[str, Any]] = {}
    bodies = {operation.name: _body_type(operation) for operation in OPERATIONS}
    kinds = [operation.answer for operation in OPERATIONS] + [kind for kind in bodies.values() if kind is not None]
    schemas, components = msgspec.json.schema_components([*kinds, RetriedExecution, ProblemBody], ref_template=REF)
    with_items(components)
    by_kind = dict(zip([id(kind) for kind in kinds], schemas, strict=False))
    for operation in OPERATIONS:
        body = bodies[operation.name]
        entry = _entry(operation, by_kind[id(operation.answer)], None if body is None else by_kind[id(body)])
        paths.setdefault(operation.path, {})[operation.method.lower()] = entry
    retry = paths[retry_task.path]["post"]
    shown = {"application/json": {"schema": {"$ref": REF.format(name=RetriedExecution.__name__)}}}
    answer = {**retry["responses"], "202": {**retry["responses"]["202"], "content": shown}}
    for path in EXECUTIONS:
        name = f"execution.retry{'_dashboard' if path.startswith('/dashboard') else ''}"
        paths[path] = {"post": retry | {"operationId": name, "tags": ["execution"], "responses": answer}}
    paths[EVENTS] = {"get": _events()}
    return openapi_document(paths, components, "The operator's API.")


def with_items(schema: Any) -> None:
    """Add `items` to every array, even if any value is allowed, because client generators require it."""
    if isinstance(schema, dict):
        if schema.get("type") == "array" and not schema.keys() & {"items", "prefixItems"}:
            schema["items"] = {}
        for part in schema.values():
            with_items(part)
    elif isinstance(schema, list):
        for part in schema:
            with_items(part)


def openapi_document(paths: dict[str, dict[str, Any]], schemas: dict[str, Any], description: str) -> dict[str, Any]:
    """Return paths and schemas as one document, with the parts that all documents share."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": __version__, "description": description},
        "security": [{"token": []}, {"developer": []}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "developer": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "x-dev-user",
                    "description": "On a machine of one's own, with HOLDFAST_ENV=local.",
                },
            },
        },
    }


def _entry(operation: Operation[Any, Any], answer: Any, body: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.name.partition(".")[0]],
        "summary": operation.summary,
        "description": f"For a caller with the role {operation.access.value}, or one above it.",
        "parameters": [*_path_parameters(operation), *_query_parameters(operation)],
        "responses": {
            str(operation.status): {
                "description": operation.summary,
                "content": {"application/json": {"schema": answer}},
            },
            **problems(),
        },
    }
    if operation.once is not None:
        entry["parameters"].append(
            {
                "name": KEY_HEADER,
                "in": "header",
                "required": False,
                "description": "The same key and request give the same answer; another request under it is refused.",
                "schema": {"type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[!-~]+$"},
            }
        )
    if body is not None:
        required = any(field.required for field in _other_fields(operation))
        entry["requestBody"] = {"required": required, "content": {"application/json": {"schema": body}}}
    return entry


def problems() -> dict[str, Any]:
    """Return the problem responses that every operation may give."""
    problem = {"application/problem+json": {"schema": {"$ref": REF.format(name="ProblemBody")}}}
    return {
        "4XX": {"description": "It cannot be done as asked; the code says why.", "content": problem},
        "5XX": {"description": "Something is away; try again.", "content": problem},
    }


def _other_fields(operation: Operation[Any, Any]) -> list[msgspec.structs.FieldInfo]:
    return [field for field in msgspec.structs.fields(operation.request) if field.name in operation.other_fields]


def _path_parameters(operation: Operation[Any, Any]) -> list[dict[str, Any]]:
    fields = {field.name: field for field in msgspec.structs.fields(operation.request)}
    return [
        {"name": name, "in": "path", "required": True, "schema": msgspec.json.schema(fields[name].type)}
        for name in operation.path_fields
    ]


def _query_parameters(operation: Operation[Any, Any]) -> list[dict[str, Any]]:
    if operation.has_body:
        return []
    return [
        {
            "name": field.name,
            "in": "query",
            "required": field.required,
            "schema": _without_null(msgspec.json.schema(field.type)),
        }
        for field in _other_fields(operation)
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove null from a schema: a query parameter is left out instead."""
    kinds = [kind for kind in schema.get("anyOf", []) if kind != {"type": "null"}]
    return kinds[0] if len(kinds) == 1 else schema


def _body_type(operation: Operation[Any, Any]) -> type | None:
    """Return the type of the body: the request without the fields in the path."""
    if not operation.has_body:
        return None
    fields: list[Any] = []
    for field in _other_fields(operation):
        if field.required:
            fields.append((field.name, field.type))
        elif field.default is not msgspec.NODEFAULT:
            fields.append((field.name, field.type, field.default))
        else:
            fields.append((field.name, field.type, msgspec.field(default_factory=field.default_factory)))
    title = re.sub(r"[^A-Za-z]", "", operation.name.title())
    return msgspec.defstruct(
        f"{title}Body",
        fields,
        kw_only=True,
        forbid_unknown_fields=True,
        namespace={"__doc__": operation.request.__doc__},
    )


def _events() -> dict[str, Any]:
    return {
        "operationId": "event.stream",
        "tags": ["event"],
        "summary": "Streams what happens to tasks and runs as server-sent events.",
        "parameters": [
            {
                "name": "after",
                "in": "query",
                "required": False,
                "description": "Begin behind this cursor; 0:0 is the start.",
                "schema": {"type": "string"},
            },
            {"name": "Last-Event-ID", "in": "header", "required": False, "schema": {"type": "string"}},
        ],
        "responses": {
            "200": {"description": "Events, for ever.", "content": {"text/event-stream": {"schema": {}}}},
            **problems(),
        },
    }
