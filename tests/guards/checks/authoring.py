"""What guards flows that are kept, and runs that are started under a key."""

from __future__ import annotations

import asyncio

from tests.guards.checks.stage import Stage, check, refuses

from holdfast.core.action_rules import ActionRules
from holdfast.core.graph import FlowDefinition
from holdfast.core.nodes import Node
from holdfast.core.retry import RetryPolicy
from holdfast.dispatcher.start import RunOptions, snapshot_of, start_keyed
from holdfast.errors import Conflict
from holdfast.store.catalog import DEFAULT_TENANT_ID, Catalog
from holdfast.store.flows import Snapshot
from holdfast.store.statements import sql

FLOW = FlowDefinition(name="shop.nightly", nodes=(Node(name="a", action="shop.work"),))
RULES = {"shop.work": ActionRules(queue="default", priority=5, policy=RetryPolicy())}


async def _snapshot(stage: Stage, catalog: Catalog | None = None) -> Snapshot:
    return await snapshot_of(catalog or stage.engine.catalog, DEFAULT_TENANT_ID, FLOW, RULES)


async def _second_comer(stage: Stage, statement: str, *arguments: object) -> None:
    """Somebody else keeps it and has not committed; whoever comes second waits, and then uses what is there."""
    async with stage.engine.database.transaction() as session:
        await session.fetch(sql(statement), *arguments)
        second = asyncio.ensure_future(_snapshot(stage, Catalog(stage.engine.database)))
        await stage.waits(second)
    assert (await second).plan.definition == FLOW


@check
async def a_flow_is_kept_once_by_whoever_comes_second(stage: Stage) -> None:
    await _second_comer(stage, "ensure_flow", 1, FLOW.name, 1, FLOW.digest(), "{}", 1, [], [])
    assert await stage.value("select count(*) from holdfast.flow") == 1


@check
async def a_snapshot_is_interned_once_by_whoever_comes_second(stage: Stage) -> None:
    first = await _snapshot(stage)
    digest = await stage.value("delete from holdfast.snapshot returning digest")
    columns = (first.lane_ids, first.policy_ids, first.priorities, first.child_ids)
    await _second_comer(stage, "ensure_snapshot", 1, first.flow_id, digest, *columns)
    assert await stage.value("select count(*) from holdfast.snapshot") == 1


@check
async def a_key_stands_for_one_run(stage: Stage) -> None:
    snapshot, options = await _snapshot(stage), RunOptions(key="order-1")
    engine = stage.engine
    runs = [
        (await start_keyed(engine.database, engine.catalog, snapshot, given, options))[0]
        for given in (b'{"day": 1}', b'{"day":1}')
    ]
    assert runs[0] == runs[1]
    with refuses(Conflict):
        await start_keyed(engine.database, engine.catalog, snapshot, b"{}", options)
    assert await stage.value("select count(*) from holdfast.run") == 1
