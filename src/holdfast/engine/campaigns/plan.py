"""What running a group of dead letters again would do: how many tasks in how many runs, where, and what may repeat."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.dead_letters.campaign import is_newer, newest
from holdfast.engine.engine import Engine
from holdfast.engine.lifecycle.runs.redrive import plan_redrive
from holdfast.errors import Conflict, NotFound
from holdfast.store.statements import sql

_PLAN = sql("plan_campaign")
_GROUP_RUNS = sql("group_runs")
_GROUP_EFFECTS = sql("group_effects")
_GROUP_VERSIONS = sql("group_versions")

RUNS_MAX = 100
"""How many runs of a group are asked what else they would run again."""
TASKS_MAX = 20_000
"""How many tasks of them are looked at."""
LETTERS_MAX = 20_000
"""How many letters of a group are looked at, the oldest first: whether one can go is asked of each."""


class RepeatedEffect(msgspec.Struct, frozen=True, kw_only=True):
    """An effect that what goes again sent before: how many would meet a receipt, how many may be sent twice, and how
    many could be undone instead."""

    name: str
    receipts: int
    unknown: int
    compensable: int


class PlannedLane(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a plan that goes to one action and queue."""

    action: str
    queue: str
    tasks: int
    nodes: int
    is_paused: bool
    max_running: int | None
    starts_per_second: float | None


class CampaignPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a campaign would do: a dry run. Of its runs those `looked_into` were asked what else they would run again,
    and what that did outside. `is_partial`: the group is larger than a dry run looks, and counts are of at least."""

    fingerprint: str
    tasks: int
    runs: int
    looked_into: int
    first_seen: datetime
    last_seen: datetime
    lanes: list[PlannedLane]
    failed_on: list[str]
    present: list[str]
    has_newer: bool
    effects: list[RepeatedEffect]
    is_partial: bool = False


class GroupEffects(msgspec.Struct, frozen=True):
    """What the tasks that go again did outside, and how much was looked at: some of the runs, of all there are."""

    effects: list[RepeatedEffect]
    runs: int
    looked_into: int


async def plan_campaign(engine: Engine, tenant_id: int, fingerprint: str) -> CampaignPlan:
    """Say what a campaign over a group would do, and change nothing."""
    rows, after = await _lanes(engine, tenant_id, fingerprint)
    if not rows:
        raise no_open_group(fingerprint)
    versions = await engine.database.fetchrow(_GROUP_VERSIONS, tenant_id, fingerprint, engine.silent_seconds)
    found = await group_effects(engine, tenant_id, fingerprint, after=after)
    failed_on, present = sorted(versions["failed_on"]), sorted(versions["present"])
    return CampaignPlan(
        fingerprint=fingerprint,
        tasks=sum(row["tasks"] for row in rows),
        runs=found.runs,
        looked_into=found.looked_into,
        first_seen=min(row["first_seen"] for row in rows),
        last_seen=max(row["last_seen"] for row in rows),
        lanes=[PlannedLane(**{name: row[name] for name in PlannedLane.__struct_fields__}) for row in rows],
        failed_on=failed_on,
        present=present,
        has_newer=bool(failed_on) and any(is_newer(one, newest(failed_on)) for one in present),
        effects=found.effects,
        is_partial=rows[0]["last_id"] is not None,
    )


async def _lanes(engine: Engine, tenant_id: int, fingerprint: str) -> tuple[list[Any], int]:
    """What would go, by lane, of the first letters among which anything would, and after which letter these begin."""
    after = 0
    while True:
        rows = await engine.database.fetch(_PLAN, tenant_id, fingerprint, LETTERS_MAX, after)
        if not rows or rows[0]["action"] is not None:
            return rows, after
        after = rows[0]["last_id"]


async def group_effects(engine: Engine, tenant_id: int, fingerprint: str, *, after: int = 0) -> GroupEffects:
    """What the tasks of a group did outside, by name, and with them whatever else their runs would run again.

    Of so many letters as one look goes to, those `after` one.
    """
    rows = await engine.database.fetch(_GROUP_RUNS, tenant_id, fingerprint, RUNS_MAX, LETTERS_MAX, after)
    reset: list[int] = []
    looked_into = 0
    for row in rows:
        if len(reset) >= TASKS_MAX:
            break
        reset += await _reset_with(engine, tenant_id, row["run_id"])
        looked_into += 1
    found = await engine.database.fetch(_GROUP_EFFECTS, tenant_id, fingerprint, reset[:TASKS_MAX], LETTERS_MAX, after)
    effects = [RepeatedEffect(**dict(row)) for row in found]
    return GroupEffects(effects, rows[0]["runs"] if rows else 0, looked_into)


async def _reset_with(engine: Engine, tenant_id: int, run_id: int) -> list[int]:
    """The tasks that a re-drive of a run resets; none when it cannot go on."""
    try:
        async with engine.database.transaction() as session:
            return (await plan_redrive(session, engine.catalog, tenant_id, run_id)).task_ids
    except (Conflict, NotFound):
        return []


def no_open_group(fingerprint: str) -> NotFound:
    return NotFound(
        f"There is no dead letter with the fingerprint {fingerprint!r} that could be run again.",
        code="dead_group_not_found",
        advice="See `holdfast dead groups`.",
    )
