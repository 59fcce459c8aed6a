"""Crash tests of actions: crash an action after every step and effect, let it be retried, and report what repeats.

A crash is simulated by freezing: at the crash point the attempt's code is never resumed, so none of its `except` or
`finally` blocks run, as with a killed process; the engine sees a dead worker. Everything else is real: the database,
the gate, the lease, the retry. The code runs in the test's own process, even with process isolation, so that fakes in
the test see its calls.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from importlib import import_module
from typing import Any
from unittest.mock import patch

from holdfast.authoring.action import Action, BoundAction
from holdfast.authoring.app import App
from holdfast.authoring.flow.flow import BoundFlow, Flow
from holdfast.client.client import Client
from holdfast.core.flows.graph import FlowDefinition
from holdfast.errors import Invalid
from holdfast.testing.crash_report import CrashReport, Traces, judged
from holdfast.testing.crash_rounds import Round
from holdfast.testing.databases import Databases, a_server

POINTS_MAX = 1_000

Prepare = Callable[[str], Awaitable[None] | None]
Begin = Callable[[Client], Awaitable[str]]
Watched = str | tuple[Any, str]


async def crash_test(
    app: App,
    action: Action[..., Any] | BoundAction[..., Any] | str,
    input: Mapping[str, Any] | None = None,
    *,
    watch: Sequence[Watched] = (),
    prepare: Prepare | None = None,
) -> CrashReport:
    """Crash an action at each of its points, one after the other, in a temporary database each.

    `watch` names functions (`"shop.mail.send"`, or an object and an attribute) that must not be called more often than
    in an undisturbed run. `prepare` gets the URL of the database before each round, to create tables or reset fakes.
    """
    name = action if isinstance(action, str) else action.action.name if isinstance(action, BoundAction) else action.name

    async def begin(client: Client) -> str:
        return (await client.submit(action, input or {})).task_id

    return await _sweep(app, name, begin, watch, prepare)


async def crash_test_flow(
    app: App,
    flow: Flow[...] | BoundFlow[...] | FlowDefinition | str,
    input: Mapping[str, Any] | None = None,
    *,
    watch: Sequence[Watched] = (),
    prepare: Prepare | None = None,
) -> CrashReport:
    """Crash a whole flow at every point of every node, like `crash_test`."""

    async def begin(client: Client) -> str:
        return (await client.start(flow, **(input or {}))).run_id

    name = flow if isinstance(flow, str) else flow.flow.name if isinstance(flow, BoundFlow) else flow.name
    return await _sweep(app, name, begin, watch, prepare)


async def _sweep(app: App, name: str, begin: Begin, watch: Sequence[Watched], prepare: Prepare | None) -> CrashReport:
    points = []
    with a_server() as databases:
        usual = await _round(databases, app, begin, watch, prepare, crash_at=0)
        for number in range(1, POINTS_MAX + 1):
            found = await _round(databases, app, begin, watch, prepare, crash_at=number)
            if not found.where:
                break
            points.append(judged(number, usual, found))
        else:
            raise Invalid(
                f"{name} has more than {POINTS_MAX} points.", code="too_many_points", advice="Use less input."
            )
    return CrashReport(name=name, state=usual.state, points=tuple(points))


async def _round(
    databases: Databases,
    app: App,
    begin: Begin,
    watch: Sequence[Watched],
    prepare: Prepare | None,
    *,
    crash_at: int,
) -> Traces:
    url = await databases.create()
    try:
        prepared = None if prepare is None else prepare(url)
        if inspect.isawaitable(prepared):
            await prepared
        traces = Traces()
        async with Client(app.settings, app.actions, app.flows, url=url) as client:
            with _watched(watch, traces.calls):
                work_id = await begin(client)
                round_ = Round(client.engine, app.actions, app.datasets, traces, crash_at=crash_at)
                await round_.run()
                traces.state = await _state_of(client, work_id)
            await round_.close()
        return traces
    finally:
        await databases.drop(url)


async def _state_of(client: Client, work_id: str) -> str:
    """Return how it ended, or `waiting` if it waits for something that the test does not provide."""
    if await client.engine.database.fetchval("select count(*) from holdfast.live"):
        return "waiting"
    return (await client.ending(work_id, timeout=10)).state


@contextmanager
def _watched(watch: Sequence[Watched], calls: Counter[str]) -> Iterator[None]:
    """Count the calls of some functions, by replacing them where they are looked up."""
    with ExitStack() as stack:
        for watched in watch:
            holder, attribute = _holder_of(watched)
            label = (
                watched
                if isinstance(watched, str)
                else f"{getattr(holder, '__name__', type(holder).__name__)}.{attribute}"
            )
            stack.enter_context(patch.object(holder, attribute, _counting(getattr(holder, attribute), label, calls)))
        yield


def _holder_of(watched: Watched) -> tuple[Any, str]:
    if not isinstance(watched, str):
        return watched
    path, _, attribute = watched.rpartition(".")
    try:
        holder = import_module(path)
    except ImportError as error:
        advice = 'Name it as "module.function", or pass (object, "attribute").'
        raise Invalid(f"{watched!r} cannot be watched: {error}.", code="invalid_watch", advice=advice) from error
    if not hasattr(holder, attribute):
        raise Invalid(f"{path} has no {attribute!r} to watch.", code="invalid_watch")
    return holder, attribute


def _counting(function: Callable[..., Any], label: str, calls: Counter[str]) -> Callable[..., Any]:
    @wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[label] += 1
        return function(*args, **kwargs)

    return counted
