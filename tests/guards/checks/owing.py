"""What guards rows that are to be taken back: the generation they are in must take rows."""

from __future__ import annotations

from tests.core.flows import a_diamond
from tests.datasets.hands import completed, declared, orders, rows, staged
from tests.flow.steps import finish
from tests.guards.checks.stage import Stage, check

from holdfast.engine.datasets.cutover import CutoverRequest, cut_over, roll_back
from holdfast.engine.datasets.take_back import take_back_once
from holdfast.store.statements import sql

BY = CutoverRequest(actor="check", reason="")


async def a_run_that_wrote(stage: Stage, version: int = 1) -> tuple[str, int]:
    """A run whose first node appended a row without a key; and to which generation."""
    generation = [await declared(stage.engine, orders(number, key=())) for number in range(1, version + 1)][-1]
    run = await stage.harness.runs.start(a_diamond())
    [lease] = await stage.harness.claim(1)
    await stage.harness.settle(lease, completed(await staged(stage.engine, lease, generation, rows(1))))
    await finish(stage.harness)
    return run, generation.generation_id


@check
async def an_old_generation_is_owed_nothing(stage: Stage) -> None:
    run, _ = await a_run_that_wrote(stage)
    await declared(stage.engine, orders(2, key=()))
    await cut_over(stage.engine.database, 1, "orders", 2, BY, is_forced=True)
    await stage.harness.runs.retry(run, only="start")
    await finish(stage.harness)
    assert await stage.value("select count(*) from holdfast.dataset_owed") == 0


@check
async def a_generation_that_is_superseded_is_owed_nothing_more(stage: Stage) -> None:
    """It is shown as it was, should it be shown again."""
    run, _ = await a_run_that_wrote(stage)
    await stage.harness.runs.retry(run, only="start")
    await declared(stage.engine, orders(2, key=()))
    await cut_over(stage.engine.database, 1, "orders", 2, BY, is_forced=True)
    await finish(stage.harness)
    await roll_back(stage.engine.database, 1, "orders", 2, BY, is_kept=True)
    await take_back_once(stage.engine.database)
    assert await stage.value("select count(*) from holdfast_data.orders") == 1


@check
async def a_generation_that_was_rolled_back_keeps_its_rows(stage: Stage) -> None:
    """Also where somebody looked before that, and comes to take them after it."""
    run, generation_id = await a_run_that_wrote(stage, version=2)
    await stage.harness.runs.retry(run, only="start")
    await finish(stage.harness)
    [owed] = await stage.engine.database.fetch(sql("owed_rows"), 10)
    await roll_back(stage.engine.database, 1, "orders", 2, BY, is_kept=True)
    assert await take_back_once(stage.engine.database) == 0
    await stage.engine.database.fetch(sql("remove_owed_rows"), generation_id, [owed["task_id"]])
    assert await stage.value("select count(*) from holdfast_data.orders_v2") == 1
