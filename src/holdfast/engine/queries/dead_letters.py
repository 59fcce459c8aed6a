"""Queries of dead letters: groups by fingerprint, pages, one in full, and the export of a group."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.codec import json_codec
from holdfast.core.dead_letters.dead_letter import DeadLetterState
from holdfast.engine.effects.gate import EffectView, list_effects
from holdfast.engine.queries.pages import ID_MAX, LOOK_PLAIN, full_page, reading, valid_limit
from holdfast.errors import Invalid, NotFound
from holdfast.store.database import Database
from holdfast.store.sql.queries import dead_letters as dead_letters_sql
from holdfast.store.sql.tasks import lanes as lanes_sql

GROUPS_MAX, GROUPS_SHOWN = 1_000, 200
LETTERS_COUNT_MAX, LETTERS_LOOK_MAX = 50_000, 3_000
"""How many dead letters of all groups together are counted, and how many are read for their states, tasks and lanes."""
LOOK_LETTERS = 5_000
UNRESOLVED = (DeadLetterState.OPEN.value, DeadLetterState.RETRY_REQUESTED.value, DeadLetterState.RETRYING.value)


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """Failures with one fingerprint. `count` is the number of tasks: a task that failed again counts once."""

    fingerprint: str
    count: int
    letters: int
    open: int
    retry_requested: int
    retrying: int
    first_seen: datetime
    last_seen: datetime
    type: str
    code: str
    message: str
    cause: str
    actions: list[str]
    queues: list[str]
    task_id: str
    is_partial: bool = False
    """Whether older dead letters of the group were left out; counts are then lower bounds. `letters` counts further."""


class DeadLetterView(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter with its failure. `input` is set only where one is shown or exported, `effects` (of its task)
    only where one is shown."""

    dead_letter_id: str
    task_id: str
    run_id: str
    state: str
    source_type: str
    source_id: str
    action: str
    queue: str
    attempts: int
    generation: int
    fingerprint: str
    cause: str
    reason: str
    code: str
    type: str
    message: str
    recovery_options: list[str]
    disposition: str
    disposition_reason: str
    actor: str
    dispatches: int
    dispatches_max: int
    dispatched_at: datetime | None
    backoff_seconds: float | None
    opened_at: datetime
    changed_at: datetime
    previous_id: str | None
    campaign_id: str | None
    tags: list[str]
    at: datetime
    traceback: str | None = None
    input: msgspec.Raw = msgspec.field(default_factory=lambda: json_codec.NULL)
    effects: list[EffectView] = []


async def dead_groups(database: Database, tenant_id: int, *, limit: int = GROUPS_SHOWN) -> list[GroupView]:
    """Return unresolved dead letters grouped by fingerprint, the largest group first."""
    bounds = (LETTERS_COUNT_MAX, GROUPS_MAX, LETTERS_LOOK_MAX)
    async with reading(database) as session:
        rows = await dead_letters_sql.dead_groups(session, tenant_id, limit, *bounds)
    lane_ids = sorted({lane_id for row in rows for lane_id in row.lane_ids})
    lanes = {row.lane_id: row for row in await lanes_sql.read_lanes(database, lane_ids)}
    return [_group_view(row, [lanes[lane_id] for lane_id in row.lane_ids]) for row in rows]


def _group_view(row: dead_letters_sql.DeadGroupsRow, lanes: Sequence[lanes_sql.ReadLanesRow]) -> GroupView:
    found = {name: value for name, value in row._asdict().items() if name not in ("lane_ids", "tasks")}
    found |= {"task_id": str(row.task_id), "count": row.tasks, "actions": sorted({lane.action for lane in lanes})}
    return GroupView(**found, queues=sorted({lane.queue for lane in lanes}))


async def list_letters(
    database: Database, tenant_id: int, *, before: int | None = None, limit: int = 50, **asked: Any
) -> list[DeadLetterView]:
    """Return the requested number of dead letters, newest first."""

    async def page(begin: int | None, left: int) -> tuple[list[DeadLetterView], int | None]:
        return await letter_page(database, tenant_id, **asked, before=begin, limit=left)

    return await full_page(page, limit, before)


async def letter_page(
    database: Database,
    tenant_id: int,
    *,
    states: Sequence[str] = (),
    fingerprint: str | None = None,
    task_id: int | None = None,
    before: int | None = None,
    limit: int = 50,
    with_input: bool = False,
) -> tuple[list[DeadLetterView], int | None]:
    """Return a page of dead letters, newest first, and the `before` of the next page; None if there are no more.

    A page reads a bounded number of rows, so a selective filter may give a short or empty page with more rows after it.
    """
    for state in states:
        if state not in set(DeadLetterState):
            advice = f"Choose from {', '.join(DeadLetterState)}."
            raise Invalid(f"{state!r} is not a state of letters.", code="invalid_state", advice=advice)
    valid_limit(limit)
    asked = (list(states) or None, fingerprint, task_id, ID_MAX if before is None else before)
    is_unresolved = bool(states) and set(states) <= set(UNRESOLVED)
    is_plain = not states and fingerprint is None
    most = limit * LOOK_PLAIN if is_plain else max(limit, LOOK_LETTERS)
    look = None if task_id is not None or (fingerprint is not None and is_unresolved) else most
    found = await dead_letters_sql.list_dead_letters(
        database, tenant_id, *asked, limit, None, with_input, look, is_unresolved
    )
    rows = [_view(row) for row in found if row.dead_letter_id is not None]
    if len(rows) == limit:
        return rows, int(rows[-1].dead_letter_id)
    return rows, found[0].floor


async def show_letter(database: Database, tenant_id: int, dead_letter_id: int) -> DeadLetterView:
    """Return one dead letter in full; raise `NotFound` if it does not exist."""
    rows = await dead_letters_sql.list_dead_letters(
        database, tenant_id, None, None, None, ID_MAX, 1, dead_letter_id, True, None, False
    )
    if rows[0].dead_letter_id is None:
        raise NotFound(
            f"There is no dead letter {dead_letter_id}.",
            code="dead_letter_not_found",
            advice="See `holdfast dead list`.",
        )
    effects = await list_effects(database, tenant_id, task_ids=[rows[0].task_id])
    return msgspec.structs.replace(_view(rows[0]), effects=effects)


def _view(row: dead_letters_sql.ListDeadLettersRow) -> DeadLetterView:
    found = {name: value for name, value in row._asdict().items() if name != "floor"}
    ids = ("dead_letter_id", "task_id", "run_id", "previous_id", "campaign_id")
    found |= {name: None if found[name] is None else str(found[name]) for name in ids}
    found["input"] = json_codec.NULL if found["input"] is None else msgspec.Raw(found["input"])
    return DeadLetterView(**found)
