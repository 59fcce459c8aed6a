"""Tasks for operators: lists, one in full, why it is where it is, run it again, stop it."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from holdfast.api.edge import Asked, Endpoint, reply
from holdfast.api.identity import Access
from holdfast.core import limits
from holdfast.dispatcher import cancel as cancel_verb
from holdfast.dispatcher.explain_runs import why as why_verb
from holdfast.dispatcher.follow import follow_up
from holdfast.dispatcher.look import list_tasks, show_task
from holdfast.dispatcher.retry import retry as retry_verb
from holdfast.errors import Conflict, Invalid

PAGE_DEFAULT, PAGE_MAX = 50, 1_000
FILTERS = {"state", "queue", "action", "tag", "before", "limit"}


class Because(msgspec.Struct, frozen=True):
    """Why somebody changes something."""

    reason: str = ""


async def index(asked: Asked) -> Response:
    """A page of tasks, newest first; `next` is the `before` of the next page."""
    query = asked.request.query_params
    if unknown := sorted(set(query) - FILTERS):
        raise Invalid(
            f"The list does not know {', '.join(unknown)[:80]}.",
            code="invalid_query",
            advice=f"It knows {', '.join(sorted(FILTERS))}.",
        )
    limit = _page(query.get("limit", str(PAGE_DEFAULT)))
    before = query.get("before")
    rows = await list_tasks(
        asked.engine.database,
        asked.caller.tenant_id,
        states=[state for given in query.getlist("state") for state in given.split(",") if state],
        queue=query.get("queue"),
        action=query.get("action"),
        tag=query.get("tag"),
        before=None if before is None else limits.task_number(before),
        limit=limit,
    )
    return reply({"tasks": rows, "next": rows[-1].task_id if len(rows) == limit else None})


async def show(asked: Asked) -> Response:
    """One task in full."""
    return reply(await show_task(asked.engine.database, asked.engine.catalog, asked.caller.tenant_id, _number(asked)))


async def why(asked: Asked) -> Response:
    """Why a task is where it is."""
    number = _number(asked)
    explanation = await why_verb(asked.engine.database, asked.engine.catalog, asked.caller.tenant_id, number)
    return reply({"task_id": str(number), **msgspec.to_builtins(explanation)})


async def retry(asked: Asked) -> Response:
    """Run a failed task again."""
    number, because = _number(asked), await _because(asked)
    engine, caller = asked.engine, asked.caller
    done = await retry_verb(
        engine.database, engine.catalog, caller.tenant_id, number, actor=caller.actor, reason=because.reason
    )
    await follow_up(engine, done.news)
    return reply({"taskId": str(number), "attempt": done.attempt, "status": "queued"}, 202)


async def cancel(asked: Asked) -> Response:
    """Stop a task: at once, or by asking it."""
    engine, number, because = asked.engine, _number(asked), await _because(asked)
    done = await cancel_verb.cancel(
        engine.database,
        engine.catalog,
        asked.caller.tenant_id,
        [number],
        grace_seconds=engine.settings.worker.cancel_grace_seconds,
        reason=because.reason,
        actor=asked.caller.actor,
    )
    await follow_up(engine, done.news)
    if number not in done.states:
        # It does not exist, or is over: the explanation knows which.
        state = (await why_verb(engine.database, engine.catalog, asked.caller.tenant_id, number)).state
        raise Conflict(f"Task {number} is already {state}.", code="task_over", state=state)
    return reply({"task_id": str(number), "state": done.states[number]}, 202)


async def _because(asked: Asked) -> Because:
    has_body = asked.request.headers.get("content-length", "0") != "0" or "transfer-encoding" in asked.request.headers
    return await asked.body(Because) if has_body else Because()


def _number(asked: Asked) -> int:
    return limits.task_number(asked.request.path_params["task_id"])


def _page(text: Any) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= PAGE_MAX):
        raise Invalid(f"The limit must be from 1 to {PAGE_MAX}, not {text[:20]!r}.", code="invalid_limit")
    return int(text)


ENDPOINTS = (
    Endpoint(method="GET", path="/api/v1/tasks", access=Access.VIEWER, handler=index),
    Endpoint(method="GET", path="/api/v1/tasks/{task_id}", access=Access.VIEWER, handler=show),
    Endpoint(method="GET", path="/api/v1/tasks/{task_id}/why", access=Access.VIEWER, handler=why),
    Endpoint(method="POST", path="/api/v1/tasks/{task_id}/retry", access=Access.OPERATOR, handler=retry),
    Endpoint(method="POST", path="/api/v1/tasks/{task_id}/cancel", access=Access.OPERATOR, handler=cancel),
)
