"""Dry run of a campaign: how many tasks in how many runs would run again, in which lanes, and which effects may
repeat."""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.core.dead_letters.campaign import is_newer, newest
from holdfast.engine.engine import Engine
from holdfast.engine.lifecycle.runs.redrive import plan_redrive
from holdfast.errors import Conflict, NotFound
from holdfast.store.sql.queries import campaigns as campaigns_sql

RUNS_MAX = 100
"""How many runs of a group are examined for the nodes that they would run again."""
TASKS_MAX = 20_000
"""How many tasks of these runs are examined."""
LETTERS_MAX = 20_000
"""How many dead letters of a group are examined, oldest first: each is checked for whether it can be re-driven."""


class RepeatedEffect(msgspec.Struct, frozen=True, kw_only=True):
    """An effect that the tasks to be re-driven sent before: how many have a receipt, how many may be sent twice, and
    how many could be compensated instead."""

    name: str
    receipts: int
    unknown: int
    compensable: int


class PlannedLane(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a plan for one action and queue."""

    action: str
    queue: str
    tasks: int
    nodes: int
    is_paused: bool
    max_running: int | None
    starts_per_second: float | None


class CampaignPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a campaign would do. `looked_into` is how many of its runs were examined for the nodes that they would run
    again and for the effects of these. `is_partial`: the group is larger than a dry run examines, and counts are lower
    bounds."""

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
    """The effects of the tasks that would run again, and how many of the runs were examined."""

    effects: list[RepeatedEffect]
    runs: int
    looked_into: int


async def plan_campaign(engine: Engine, tenant_id: int, fingerprint: str) -> CampaignPlan:
    """Return what a campaign over a group would do, without changing anything."""
    rows, after = await _lanes(engine, tenant_id, fingerprint)
    if not rows:
        raise no_open_group(fingerprint)
    versions = await campaigns_sql.group_versions(engine.database, tenant_id, fingerprint, engine.silent_seconds)
    found = await group_effects(engine, tenant_id, fingerprint, after=after)
    failed_on, present = sorted(versions.failed_on), sorted(versions.present)
    return CampaignPlan(
        fingerprint=fingerprint,
        tasks=sum(row.tasks for row in rows),
        runs=found.runs,
        looked_into=found.looked_into,
        first_seen=min(row.first_seen for row in rows),
        last_seen=max(row.last_seen for row in rows),
        lanes=[_planned_lane(row) for row in rows],
        failed_on=failed_on,
        present=present,
        has_newer=bool(failed_on) and any(is_newer(one, newest(failed_on)) for one in present),
        effects=found.effects,
        is_partial=rows[0].last_id is not None,
    )


def _planned_lane(row: campaigns_sql.PlanCampaignRow) -> PlannedLane:
    assert row.action is not None
    return PlannedLane(
        action=row.action,
        queue=row.queue,
        tasks=row.tasks,
        nodes=row.nodes,
        is_paused=row.is_paused,
        max_running=row.max_running,
        starts_per_second=row.starts_per_second,
    )


async def _lanes(engine: Engine, tenant_id: int, fingerprint: str) -> tuple[list[campaigns_sql.PlanCampaignRow], int]:
    """Return the re-drivable tasks by lane, from the first batch of dead letters that has any, and the id after which
    that batch begins."""
    after = 0
    while True:
        rows = await campaigns_sql.plan_campaign(engine.database, tenant_id, fingerprint, LETTERS_MAX, after)
        if not rows or rows[0].action is not None:
            return rows, after
        assert rows[0].last_id is not None, "an empty batch names its last dead letter"
        after = rows[0].last_id


async def group_effects(engine: Engine, tenant_id: int, fingerprint: str, *, after: int = 0) -> GroupEffects:
    """Return the effects of a group's tasks, by name, including the other tasks that their runs would run again.

    Examines `LETTERS_MAX` dead letters, those `after` an id.
    """
    rows = await campaigns_sql.group_runs(engine.database, tenant_id, fingerprint, RUNS_MAX, LETTERS_MAX, after)
    reset: list[int] = []
    looked_into = 0
    for row in rows:
        if len(reset) >= TASKS_MAX:
            break
        reset += await _reset_with(engine, tenant_id, row.run_id)
        looked_into += 1
    found = await campaigns_sql.group_effects(
        engine.database, tenant_id, fingerprint, reset[:TASKS_MAX], LETTERS_MAX, after
    )
    effects = [RepeatedEffect(**row._asdict()) for row in found]
    return GroupEffects(effects, rows[0].runs if rows else 0, looked_into)


async def _reset_with(engine: Engine, tenant_id: int, run_id: int) -> list[int]:
    """Return the tasks that a re-drive of a run resets; none if it cannot be re-driven."""
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
