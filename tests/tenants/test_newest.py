"""How a tenant's newest rows are found beside those of others (see holdfast.newest_ids)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.tenants.acme import acme, at_acme

from holdfast.engine.engine import Engine
from holdfast.engine.maintenance.retention import begin_today
from holdfast.engine.queries.tasks import list_tasks, task_page
from holdfast.testing import factories as a
from holdfast.testing.engine_harness import EngineHarness

__all__ = ["acme", "at_acme"]

_NEWEST_BLOCK = """
select b.is_shared, exists (
    select from pg_indexes i
    where i.schemaname = 'holdfast' and i.tablename = 'attempt_' || b.block and i.indexdef like '%(tenant_id, task_id)%'
  ) as is_indexed
from holdfast.block b
order by b.block desc
limit 1
"""
_MANY_COMPLETED = """
insert into holdfast.attempt (task_id, started_at, ended_at, attempt, tenant_id, state, lease_token)
select 1000 + n, now(), now(), 1, 1, 'c', gen_random_uuid() from generate_series(1, 600) n
"""


async def newest(engine: Engine, kind: str, tenant_id: int, many: int) -> Sequence[Any]:
    return await engine.database.fetch(
        "select id, is_edge from holdfast.newest_ids($1, $2, 0, 1000000, $3)", kind, tenant_id, many
    )


async def test_a_single_tenant_keeps_no_index_of_completions(engine: Engine) -> None:
    await begin_today(engine.database)
    assert tuple(await engine.database.fetchrow(_NEWEST_BLOCK)) == (False, False)


async def test_a_second_tenant_begins_a_block_with_an_index_by_tenant(engine: Engine, acme: Any) -> None:
    await begin_today(engine.database)
    blocks = await engine.database.fetchval("select count(*) from holdfast.block")
    await begin_today(engine.database)

    assert tuple(await engine.database.fetchrow(_NEWEST_BLOCK)) == (True, True)
    assert await engine.database.fetchval("select count(*) from holdfast.block") == blocks


@pytest.mark.breaks_invariants
async def test_what_completed_before_that_is_found_page_by_page(engine: Engine, at_acme: EngineHarness) -> None:
    mine = await a.a_completed_task(at_acme)
    await engine.database.fetch(_MANY_COMPLETED)
    own = at_acme.engine

    rows, following = await task_page(own.database, own.tenant_id, limit=50)
    assert (rows, following is None) == ([], False)
    assert [row.task_id for row in await list_tasks(own.database, own.tenant_id, limit=50)] == [mine]


async def test_who_runs_more_than_can_be_sorted_is_shown_the_newest_of_all(harness: EngineHarness) -> None:
    running = [await a.a_running_task(harness) for _ in range(11)]
    queued = await harness.enqueue(a.a_task())

    few = await newest(harness.engine, "running", 1, 2)
    assert [tuple(row) for row in few] == [
        (int(running[-1].task_id), False),
        (int(running[-2].task_id), False),
        (int(running[-2].task_id), True),
    ]
    crowd = await newest(harness.engine, "running", 1, 1)
    assert [tuple(row) for row in crowd] == [(int(queued.task_id), True)]


async def test_nobody_is_told_the_ids_of_another_tenant(engine: Engine, at_acme: EngineHarness) -> None:
    await a.a_failed_task(at_acme)
    acme_id = at_acme.engine.tenant_id
    walled = engine.of(engine.tenant_id)

    assert len(await newest(at_acme.engine, "ended", acme_id, 5)) == 1
    assert not await newest(walled, "ended", acme_id, 5)
    assert not await newest(walled, "ended", engine.tenant_id, 5)
    assert not await walled.database.fetch("select from holdfast.running_and_waiting_by_lane($1, 5)", acme_id)
    assert not await walled.database.fetch("select from holdfast.previous_block($1, 1000000)", acme_id)
