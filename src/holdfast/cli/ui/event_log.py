"""A readable live log of task events: one line per event, or counts when there are many.

It follows the recorded events in its own thread. An outage of the database only delays it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING

import click

from holdfast.cli.ui.words import hue, one_line, state_text, strip_control_chars
from holdfast.core.values.duration import human
from holdfast.store.sql.queries import events as events_sql

if TYPE_CHECKING:
    from holdfast.cli.ui.shell import Shell
    from holdfast.engine.queries.events import Event
    from holdfast.store.database import Database

LOOK_SECONDS = 0.25
LINES_MAX = 20
_WORDS = {"started": "running"}


class LiveLog:
    """Prints events of one tenant to stderr until closed."""

    def __init__(self, shell: Shell, url: str, tenant: str) -> None:
        self._shell = shell
        self._url = url
        self._tenant = tenant
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-livelog", daemon=True)
        self._following: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Follow events from now on."""
        self._thread.start()
        self._ready.wait(10)

    def close(self) -> None:
        """Print the remaining events, then stop."""
        if self._following is not None:
            self._loop.call_soon_threadsafe(self._following.cancel)
        self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            self._following = self._loop.create_task(self._follow())
            self._loop.run_until_complete(asyncio.gather(self._following, return_exceptions=True))
        finally:
            self._ready.set()
            self._loop.close()

    async def _follow(self) -> None:
        from holdfast.engine.identity.tenants import find_tenant
        from holdfast.engine.queries.events import event_tail
        from holdfast.store.database import TRANSIENT, Database

        database = await Database(self._url, sessions_max=1).open()
        try:
            tenant_id = (await find_tenant(database, self._tenant)).tenant_id
            cursor = await event_tail(database)
            self._ready.set()
            try:
                while True:
                    with contextlib.suppress(*TRANSIENT):
                        cursor = await self._step(database, tenant_id, cursor)
                    await asyncio.sleep(LOOK_SECONDS)
            except asyncio.CancelledError:
                await self._step(database, tenant_id, cursor)
        finally:
            await database.close()

    async def _step(self, database: Database, tenant_id: int, cursor: str) -> str:
        from holdfast.engine.queries.events import events_after

        page = await events_after(database, tenant_id, cursor)
        notable = _worth_telling([event for event in page.events if event.task_id])
        if len(notable) > LINES_MAX:
            self._print_counts(notable)
            notable = [event for event in notable if event.kind in ("task.failed", "task.lost")][:LINES_MAX]
        for line in await _lines(database, notable):
            self._shell.talk(line)
        return page.cursor

    def _print_counts(self, events: list[Event]) -> None:
        counts = Counter(_state(event) for event in events)
        parts = [click.style(f"{state_text(state)} {count}", fg=hue(state) or None) for state, count in counts.items()]
        self._shell.talk(f"{_stamp(events[-1].at)}  {'  '.join(parts)}")


def _worth_telling(events: list[Event]) -> list[Event]:
    """Drop the start of an attempt whose end is also in the list."""
    ended = {(event.task_id, event.attempt) for event in events if event.kind != "task.started"}
    return [event for event in events if event.kind != "task.started" or (event.task_id, event.attempt) not in ended]


def _state(event: Event) -> str:
    word = event.kind.rpartition(".")[2]
    return _WORDS.get(word, word)


async def _lines(database: Database, events: list[Event]) -> list[str]:
    from holdfast.store.sql.queries import events as events_sql

    if not events:
        return []
    task_ids = [int(event.task_id) for event in events]
    rows = await events_sql.log_lines(database, task_ids, [event.attempt for event in events])
    known = {(row.task_id, row.attempt): row for row in rows}
    return [_line(event, known.get((int(event.task_id), event.attempt))) for event in events]


def _line(event: Event, row: events_sql.LogLinesRow | None) -> str:
    state = _state(event)
    head = click.style(f"{state_text(state):<12}", fg=hue(state) or None)
    action = "" if row is None else row.action or ""
    parts = [f"{_stamp(event.at)}  {head} {event.task_id}  {strip_control_chars(action)}"]
    if event.attempt > 1:
        parts.append(f"attempt {event.attempt}")
    if row is not None and row.took_seconds is not None and state == "completed":
        parts.append(f"in {human(row.took_seconds)}")
    if row is not None and row.code is not None and state in ("failed", "retrying", "lost"):
        name = (row.type or "").rpartition(".")[2] or row.code
        parts.append(f"{name}: {one_line(row.message or '')[:160]}")
        parts.append(click.style(one_line(row.sentence or ""), dim=True))
    return "  ".join(parts)


def _stamp(at: datetime) -> str:
    return f"{at.astimezone():%H:%M:%S}"
