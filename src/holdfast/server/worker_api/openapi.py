"""The description of the worker contract, generated from its routes and their types: as OpenAPI, and as a page."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import msgspec

from holdfast.operations.openapi import REF, ProblemBody, openapi_document, problems, with_items
from holdfast.protocol.worker import Completion
from holdfast.server.auth.caller import Access
from holdfast.server.endpoint import Endpoint
from holdfast.server.worker_api import effects, launched, registration, routes

CALLS: tuple[Endpoint, ...] = (
    *registration.ENDPOINTS,
    *routes.ENDPOINTS,
    *launched.ENDPOINTS,
    *effects.ENDPOINTS,
)

WHOM = {
    Access.WORKER: "For a caller with the role worker.",
    Access.ATTEMPT: "For a caller with the role worker, or with the token of the attempt.",
}
PAGE = """
## The worker contract

The HTTP API of remote workers; [its rules](remote-workers.md#the-contract) define the order of calls. The same contract
is served as an OpenAPI document at `/internal/openapi.json`, on the workers' listener. Unknown fields are ignored.
"""


def contract() -> dict[str, Any]:
    """Return the whole OpenAPI document."""
    kinds = [kind for call in CALLS for kind in (call.takes, call.answers) if kind is not None]
    shown = [*map(_shown, kinds), ProblemBody]
    schemas, components = msgspec.json.schema_components(shown, ref_template=REF)
    with_items(components)
    with_items(schemas)
    found = dict(zip(kinds, schemas, strict=False))
    paths = {call.path: {call.method.lower(): _entry(call, found)} for call in CALLS}
    return openapi_document(paths, components, "The worker contract.")


@cache
def _shown(kind: type) -> type:
    """Return the type as OpenAPI can describe it: raw JSON fields become any value, null by default."""
    fields: list[Any] = []
    for field in msgspec.structs.fields(kind):
        inner = list[_shown(Completion)] if field.type == list[Completion] else field.type  # type: ignore[misc]
        if isinstance(field.default, msgspec.Raw):
            fields.append((field.name, Any, None))
        elif field.default is not msgspec.NODEFAULT:
            fields.append((field.name, inner, field.default))
        elif field.default_factory is not msgspec.NODEFAULT:
            fields.append((field.name, inner, msgspec.field(default_factory=field.default_factory)))
        else:
            fields.append((field.name, inner))
    return msgspec.defstruct(kind.__name__, fields, namespace={"__doc__": kind.__doc__}, kw_only=True)


def _entry(call: Endpoint, schemas: dict[type, Any]) -> dict[str, Any]:
    assert call.answers is not None
    answer = {"description": _summary(call), "content": {"application/json": {"schema": schemas[call.answers]}}}
    entry: dict[str, Any] = {
        "operationId": call.path.removeprefix("/internal/").replace("/", "."),
        "tags": ["worker"],
        "summary": _summary(call),
        "description": WHOM[call.access],
        "responses": {"200": answer, **problems()},
    }
    if call.takes is not None:
        content = {"application/json": {"schema": schemas[call.takes]}}
        entry["requestBody"] = {"required": True, "content": content}
    return entry


def page() -> str:
    """Return the part of the HTTP reference that is about workers."""
    return "\n".join([PAGE, *map(_section, CALLS)])


def _section(call: Endpoint) -> str:
    assert call.answers is not None
    lines = [f"### {call.method} {call.path}\n", f"{_summary(call)} {WHOM[call.access]}\n"]
    if call.takes is not None:
        names = (f"`{field.name}`{'*' if field.required else ''}" for field in msgspec.structs.fields(call.takes))
        lines.append(f"Takes {', '.join(names)}.{_note(call, call.takes)}\n")
    names = (f"`{field.name}`" for field in msgspec.structs.fields(call.answers))
    lines.append(f"Answers {', '.join(names)}.{_note(call, call.answers)}\n")
    return "\n".join(lines)


def _summary(call: Endpoint) -> str:
    return inspect.cleandoc(call.handler.__doc__ or "")


def _note(call: Endpoint, kind: type) -> str:
    text = " ".join((kind.__doc__ or "").split())
    return f" {text}" if text not in ("", _summary(call)) else ""
