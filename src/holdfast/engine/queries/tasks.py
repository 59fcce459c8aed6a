"""List tasks in pages, newest first, in bounded time.

Ids grow with time, but in two ranges: in every block the ids of plain tasks come first, then those of nodes and items.
So a page is read from both ranges and merged by creation time, and a cursor has a position in each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import merge
from itertools import accumulate, islice
from typing import Any, NamedTuple

from holdfast.core.tasks.states import RETRYING_LABEL, TaskState
from holdfast.core.values import bounds
from holdfast.engine.queries.pages import (
    ID_MAX,
    LOOK_PLAIN,
    SCAN_ROWS_MAX,
    Since,
    full_page,
    moment_of,
    reading,
    valid_limit,
)
from holdfast.errors import Invalid
from holdfast.store.database import Database, Session
from holdfast.store.sql.queries import list_tasks as list_tasks_sql
from holdfast.store.sql.queries import runs as runs_sql
from holdfast.store.sql.queries import tasks as tasks_sql

DELAYED = "delayed"
STATES = (*(state.value for state in TaskState), RETRYING_LABEL, DELAYED)
"""The states that a list of tasks may be filtered by; `failed` means for good, `delayed` is the part of `queued` that
is not due yet."""

SCAN_ATTEMPTS_MAX, SCAN_RUNS_MAX = 250, 50
"""How many attempts and runs one page reads; at least as many as it may show."""
BLOCKS_MAX = 5
"""How many blocks of ids one page reads: blocks of quiet days have few tasks."""
_HELD = {"running": ("r",), "retrying": ("w",), "queued": ("v", "w"), DELAYED: ("w",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """One row of a list. `error` is the last failure on one line."""

    task_id: str
    action: str
    queue: str
    state: str
    attempt: int
    max_attempts: int
    priority: int
    tags: list[str]
    key: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    due_at: datetime | None
    next_retry_at: datetime | None
    worker: str | None
    error: str | None
    at: datetime
    run_id: str | None
    node: str | None
    kind: str = "task"
    """Of a node: `task`, `map` (its items are tasks too), `flow` (another run) or `wait`; `item` of a map."""


CURSOR = "p"
_CURSOR = re.compile(rf"{CURSOR}([0-9a-f]{{1,15}}|7f{{15}})-([0-9a-f]{{1,15}}|7f{{15}})")


class TaskCursor(NamedTuple):
    """The position before which a page begins: one id among plain tasks and one among nodes."""

    tasks: int = ID_MAX
    nodes: int = ID_MAX

    def __str__(self) -> str:
        return f"{CURSOR}{self.tasks:x}-{self.nodes:x}"

    @classmethod
    def of(cls, text: str) -> TaskCursor:
        """Parse a cursor. A plain id is a position in both ranges."""
        if (found := _CURSOR.fullmatch(text)) is None:
            number = bounds.task_number(text)
            return cls(number, number)
        return cls(int(found[1], 16), int(found[2], 16))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """The filter of a task list."""

    tenant_id: int
    states: Sequence[str] = ()
    lanes: Sequence[int] | None = None
    tag: str | None = None
    since: datetime | None = None


class _Found(NamedTuple):
    """Tasks of one id range, newest first, and the id below which to continue; 0 if there are no more."""

    rows: dict[int, list_tasks_sql.FindTasksRow]
    rest: int


async def list_tasks(
    database: Database, tenant_id: int, *, before: TaskCursor | int | None = None, limit: int = 50, **asked: Any
) -> list[TaskRow]:
    """Return the requested number of tasks, newest first."""

    async def page(begin: TaskCursor | None, left: int) -> tuple[list[TaskRow], TaskCursor | None]:
        return await task_page(database, tenant_id, **asked, before=begin, limit=left)

    return await full_page(page, limit, _place(before))


async def task_page(
    database: Database,
    tenant_id: int,
    *,
    states: Sequence[str] = (),
    queue: str | None = None,
    action: str | None = None,
    tag: str | None = None,
    since: Since = None,
    before: TaskCursor | int | None = None,
    limit: int = 50,
) -> tuple[list[TaskRow], TaskCursor | None]:
    """Return a page of tasks, newest first, and the cursor of the next page; None if there are no more.

    A page reads a bounded number of rows, so a selective filter may give a short or empty page with more rows after it.
    """
    for state in states:
        if state not in STATES:
            raise Invalid(
                f"{state!r} is not a state.", code="invalid_state", advice=f"Choose from {', '.join(STATES)}."
            )
    valid_limit(limit)
    place = _place(before)
    async with reading(database) as session:
        lanes = None
        if queue is not None or action is not None:
            lanes = [row.lane_id for row in await tasks_sql.find_lanes(session, tenant_id, queue, action)]
            if not lanes:
                return [], None
        asked = TaskFilter(
            tenant_id=tenant_id, states=states, lanes=lanes, tag=tag, since=await moment_of(session, since)
        )
        return await _page(session, asked, place, limit)


def _place(before: TaskCursor | int | None) -> TaskCursor:
    """Return the position to begin at; a plain id is a position in both ranges."""
    if isinstance(before, TaskCursor):
        return before
    return TaskCursor() if before is None else TaskCursor(before, before)


async def _page(
    session: Session, asked: TaskFilter, place: TaskCursor, limit: int
) -> tuple[list[TaskRow], TaskCursor | None]:
    """Read block after block until the page is full, or until a block was only partly read."""
    rows: list[TaskRow] = []
    for _ in range(BLOCKS_MAX):
        block = await list_tasks_sql.block_of(session, asked.tenant_id, max(place))
        if block is None:
            return rows, None
        first, middle, last = block.first_id, block.middle_id, block.last_id
        left = limit - len(rows)
        tasks = await _find(session, asked, first, min(place.tasks, middle), left, are_nodes=False)
        nodes = await _find(session, asked, middle, min(place.nodes, last + 1), left, are_nodes=True)
        taken = await _merged(session, tasks, nodes, left)
        if asked.since is not None and (young := [row for row in taken if row.created_at >= asked.since]) != taken:
            return rows + young, None
        rows += taken
        ids = {int(row.task_id) for row in taken}
        place = TaskCursor(
            _rest(tasks, ids, min(place.tasks, middle)) or first, _rest(nodes, ids, min(place.nodes, last + 1)) or first
        )
        if len(rows) == limit or max(place) > first:
            break
    return rows, place


async def _find(session: Session, asked: TaskFilter, first: int, before: int, limit: int, *, are_nodes: bool) -> _Found:
    """Return the matching tasks with ids from `first` to below `before`."""
    if first >= before:
        return _Found({}, 0)
    states = list(asked.states) or None
    held = sorted({letter for state in asked.states or _HELD for letter in _HELD.get(state, ())})
    is_plain = not asked.states and asked.lanes is None and asked.tag is None
    look, look_attempts = (
        (limit * LOOK_PLAIN,) * 2 if is_plain else (max(limit, SCAN_ROWS_MAX), max(limit, SCAN_ATTEMPTS_MAX))
    )
    given = (asked.tenant_id, states, asked.lanes, asked.tag, before, limit, look)
    found = await list_tasks_sql.find_tasks(session, *given, first, held, look_attempts)
    floors = [found[0].floor]
    if are_nodes:
        bare = await list_tasks_sql.find_nodes(session, *given, max(limit, SCAN_RUNS_MAX), first)
        floors.append(bare[0].floor)
        found = [*found, *(list_tasks_sql.FindTasksRow(*row) for row in bare)]
    floor = max((known for known in floors if known is not None), default=0)
    rows = {row.task_id: row for row in found if row.task_id is not None and row.task_id >= floor}
    newest = sorted(rows, reverse=True)[:limit]
    return _Found({task_id: rows[task_id] for task_id in newest}, newest[-1] if len(newest) == limit else floor)


def _rest(found: _Found, taken: set[int], before: int) -> int:
    """Return the id below which to continue after only some of the found rows were taken."""
    rest = found.rest
    for task_id in reversed(found.rows):
        if task_id in taken:
            break
        rest = task_id + 1
    return min(rest, before)


async def _merged(session: Session, tasks: _Found, nodes: _Found, limit: int) -> list[TaskRow]:
    """Return the newest rows of both ranges, with all columns."""
    found = [*tasks.rows.items(), *nodes.rows.items()]
    filled = []
    if found:
        filled = await list_tasks_sql.fill_tasks(
            session,
            [task_id for task_id, _ in found],
            [row.state for _, row in found],
            [row.attempt for _, row in found],
            [row.run_id for _, row in found],
            [row.node_no for _, row in found],
        )
    rows = {int(row.task_id): row for row in filled}
    streams = [[rows[task_id] for task_id in part.rows] for part in (tasks, nodes)]
    by_time = merge(*(zip(_times(one), one, strict=True) for one in streams), key=lambda pair: pair[0], reverse=True)
    return [_task_row(row) for _, row in islice(by_time, limit)]


def _times(rows: Sequence[list_tasks_sql.FillTasksRow]) -> list[datetime]:
    """Return the latest possible creation time of each row: an item has the start time of its run, but was created
    after all tasks with a lower id."""
    return list(accumulate((row.created_at for row in reversed(rows)), max))[::-1]


def _task_row(row: list_tasks_sql.FillTasksRow) -> TaskRow:
    found = row._asdict()
    line = error_line(row)
    for name in ("code", "type", "message"):
        del found[name]
    return TaskRow(**found, error=line)


def error_line(row: runs_sql.LastFailuresRow | runs_sql.ListRunsRow | list_tasks_sql.FillTasksRow) -> str | None:
    """Format a failure on one line: `ValueError: no such order`."""
    if row.code is None:
        return None
    name = (row.type or "").rpartition(".")[2] or row.code
    line = " ".join((row.message or "").split())[:300]
    return f"{name}: {line}".rstrip(": ")
