"""Operations that follow a run: its progress, its events and its end. Each request waits at most 20 seconds."""

from __future__ import annotations

import asyncio
import time

import msgspec

from holdfast.client.run_events import RunEvent, named_events
from holdfast.core.identity.access import Access
from holdfast.core.values import bounds
from holdfast.engine.queries import status
from holdfast.engine.queries.events import START, run_events_after
from holdfast.engine.queries.status import RunProgress
from holdfast.errors import Invalid, WaitTimeout
from holdfast.operations.context import OperationContext
from holdfast.operations.operation import Request, operation
from holdfast.operations.runs import OfRun, RunStateView
from holdfast.operations.tasks import WAIT_SECONDS_MAX, WAITING, bounded_wait

POLL_SECONDS = 0.1


class AwaitRun(Request, frozen=True, kw_only=True):
    """A run, and how long to wait for its end: at most 20 seconds, then repeat the request."""

    run_id: str
    wait_seconds: float = 0.0


class ReadRunEvents(Request, frozen=True, kw_only=True):
    """Events after a cursor: the `next` and `ended_by` of the previous page. Without new events the request waits up to
    `wait_seconds`; a page without events may still have an advanced `next`.
    """

    run_id: str
    after: str = START
    ended_by: str = ""
    wait_seconds: float = 0.0


class RunEvents(msgspec.Struct, frozen=True, kw_only=True):
    """A page of events. After a page with `is_end`, this generation of the run has no more events."""

    events: list[RunEvent]
    next: str
    ended_by: str
    is_end: bool


@operation(
    "run.ending",
    "GET /api/v1/runs/{run_id}/ending",
    Access.VIEWER,
    commands=("run start",),
    in_vain=lambda request: RunStateView(run_id=request.run_id, state=WAITING),
)
async def await_run(context: OperationContext, request: AwaitRun) -> RunStateView:
    """Waits for the end of a run, and returns how it ended; `waiting` if it has not."""
    try:
        state = await context.client.run(request.run_id).wait(bounded_wait(request.wait_seconds))
    except WaitTimeout:
        return RunStateView(run_id=request.run_id, state=WAITING)
    return RunStateView(run_id=request.run_id, state=state)


@operation(
    "run.events",
    "GET /api/v1/runs/{run_id}/events",
    Access.VIEWER,
    commands=("run watch",),
    in_vain=lambda request: RunEvents(events=[], next=request.after, ended_by=request.ended_by, is_end=False),
)
async def read_run_events(context: OperationContext, request: ReadRunEvents) -> RunEvents:
    """Reads the events of a run and its nodes after a cursor; waits if there are none."""
    number = bounds.run_number(request.run_id)
    began_at = time.monotonic()
    until = began_at + min(max(0.0, request.wait_seconds), WAIT_SECONDS_MAX)
    after, ended_by = request.after, _xid(request.ended_by)
    while True:
        page = await run_events_after(context.database, context.tenant_id, number, after, ended_by=ended_by)
        after, ended_by = page.cursor, page.tail
        # A long history without events of this run is read for as long as a request may wait at most.
        enough_at = until if page.is_all else began_at + WAIT_SECONDS_MAX
        if page.events or page.is_end or time.monotonic() >= enough_at:
            break
        if page.is_all:
            await asyncio.sleep(POLL_SECONDS)
    events = await named_events(context.engine, number, page.events)
    return RunEvents(events=events, next=after, ended_by=ended_by, is_end=page.is_end)


@operation("run.progress", "GET /api/v1/runs/{run_id}/progress", Access.VIEWER, commands=("run watch",))
async def run_progress(context: OperationContext, request: OfRun) -> RunProgress:
    """Returns the progress of a run without its nodes: cheap to poll, however large the run is."""
    return await status.run_progress(context.database, context.tenant_id, bounds.run_number(request.run_id))


def _xid(text: str) -> str:
    if text and not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise Invalid(f"{text[:80]!r} is not the `ended_by` of a page.", code="invalid_cursor", advice="Leave it out.")
    return text


OPERATIONS = (
    await_run,
    read_run_events,
    run_progress,
)
