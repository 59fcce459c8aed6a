"""Pages: how long each list takes over HTTP with a million tasks of history and a million queued tasks.

Measured as the tenant that has them, and as a tenant that has three tasks.

Every list of the operator API is requested with every filter. Each response names the next page, and the next request
is for that page, so that later pages are measured like the first. All requests take turns, and for each quantile the
median of the turns counts: a short stall of the machine is no property of a list.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from holdfast.engine.identity.tokens import create_token
from holdfast.operations.operation import Operation
from holdfast.settings.settings import Settings
from holdfast.worker.transport.http_connection import HttpConnection, Server
from holdfast_bench.history import History, fill_history
from holdfast_bench.http import http_server
from holdfast_bench.neighbours import FEW
from holdfast_bench.questions import Asked, all_questions, questions_beside
from holdfast_bench.spread import quantiles, typical
from holdfast_bench.trial import Trial

TASKS, TASKS_QUICK = 1_000_000, 5_000
ASKED, ASKED_QUICK = 200, 10
WARM = 5
TURNS_MAX = 3
SLOWEST_SHOWN = 10


class _Page(msgspec.Struct, frozen=True):
    """The field that all pages have."""

    next: str | int | None = None


async def measure_pages(trial: Trial) -> dict[str, Any]:
    """Fill the database, then measure."""
    tasks = TASKS_QUICK if trial.is_quick else TASKS
    await trial.arena.fresh()
    trial.say(f"pages: writing a history of {tasks:,} tasks, and {tasks:,} queued ones")
    async with trial.client() as client:
        history = await fill_history(trial.arena, client, tasks=tasks, queued=tasks)
    turns: dict[str, list[dict[str, float]]] = {}
    times = ASKED_QUICK if trial.is_quick else ASKED
    async with http_server(trial) as (url, _):
        large = HttpConnection(Server.of(url, Settings(env="local")))
        few = HttpConnection(Server.of(url, Settings(env="local", token=await _token(trial, history))))
        for turn in range(1, min(trial.rounds, TURNS_MAX) + 1):
            for calls, whose, (operation, asked) in (
                *((large, "", question) for question in all_questions(history)),
                *((few, f" as {FEW}", question) for question in questions_beside(history)),
            ):
                name = f"{shown(operation, asked)}{whose}"
                trial.say(f"pages, round {turn}: {name}")
                waits = await ask(calls, operation, asked, times)
                turns.setdefault(name, []).append(quantiles(waits, "p50", "p99"))
    pages = {name: typical(of_turns) for name, of_turns in turns.items()}
    worst = sorted(pages, key=lambda name: -pages[name]["p99"])
    return {
        "p99_max_ms": pages[worst[0]]["p99"],
        "p50_max_ms": max(page["p50"] for page in pages.values()),
        "slowest": {name: pages[name] for name in worst[:SLOWEST_SHOWN]},
        "pages": pages,
        "lists": len({operation.name for operation, _ in all_questions(history)}),
        "questions": len(pages),
        "asked": times,
        "rounds": min(trial.rounds, TURNS_MAX),
        "tasks": history.tasks,
        "queued": history.queued,
    }


async def _token(trial: Trial, history: History) -> str:
    """Create a token of an administrator of the small tenant."""
    async with trial.client() as client:
        made = await create_token(
            client.engine.database, history.few, name="bench", role="admin", actor="bench", reason="measure"
        )
    return made.token


async def ask(calls: HttpConnection, operation: Operation[Any, Any], asked: Asked, times: int) -> list[float]:
    """Return the milliseconds of each response: the requested page, and the following ones while there are any."""
    waits: list[float] = []
    following: Mapping[str, Any] = {}
    for number in range(WARM + times):
        path = path_of(operation, {**asked, **following})
        began_at = time.perf_counter()
        page = await calls.get(path, _Page)
        if number >= WARM:
            waits.append((time.perf_counter() - began_at) * 1000)
        cursor = "before" if "before" in operation.other_fields else "after"
        following = {cursor: page.next} if page.next is not None and cursor in operation.other_fields else {}
    return waits


def path_of(operation: Operation[Any, Any], asked: Asked) -> str:
    """Return the path and query of a request."""
    path = operation.path.format(**{name: quote(str(asked[name])) for name in operation.path_fields})
    query = {name: _text(value) for name, value in asked.items() if name not in operation.path_fields}
    return f"{path}?{urlencode(query, doseq=True)}" if query else path


def _text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def shown(operation: Operation[Any, Any], asked: Asked) -> str:
    """Return a request in readable form: `task.list queue=rare`."""
    filters = [
        f"{name}={','.join(value) if isinstance(value, list) else _text(value)}" for name, value in asked.items()
    ]
    return " ".join([operation.name, *filters])
