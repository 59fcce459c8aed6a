"""What guards nodes that run again: items, and the runs that they started."""

from __future__ import annotations

from tests.core.flows import a_map, a_sum
from tests.flow.steps import finish, step
from tests.flow.test_sub_flows import OUTPUTS, a_failed_parent, a_listed_parent, children
from tests.guards.checks.stage import Stage, check

from holdfast.core.tasks.outcome import Completed
from holdfast.engine.lifecycle.dead_letters.commands import resolve
from holdfast.engine.lifecycle.dead_letters.sweep import repair_letters_once
from holdfast.store.statements import sql


@check
async def items_that_wait_their_turn_are_dropped_by_a_cancel(stage: Stage) -> None:
    """Those that completed before are none of them."""
    run = await stage.harness.runs.start(a_map(concurrency=1))
    await step(stage.harness, outputs={0: {"all": [1, 2, 3]}})
    await step(stage.harness, fail=[1])
    await step(stage.harness)
    await step(stage.harness, fail=[1])
    await stage.harness.runs.retry(run)
    [lease] = await stage.harness.claim(10)
    await stage.harness.runs.cancel(run, grace_seconds=60)
    assert await stage.harness.runs.state(run) == "open"
    await stage.harness.settle(lease, Completed(b"1"))
    assert await stage.harness.runs.state(run) == "canceled"


async def a_run_to_replace(stage: Stage) -> tuple[str, int]:
    """A run whose sub-flow failed with a letter, and will have another input; its id, and the letter's."""
    await stage.harness.runs.snapshot(a_sum(1))
    run = await stage.harness.runs.start(a_listed_parent())
    await step(stage.harness, outputs=OUTPUTS)
    await finish(stage.harness, outputs=OUTPUTS, fail=[1])
    return run, await stage.value("select dead_letter_id from holdfast.dead_letter")


async def disposition(stage: Stage) -> str:
    return str(await stage.value("select disposition from holdfast.dead_letter"))


@check
async def a_letter_that_was_resolved_stays_so_when_its_run_is_replaced(stage: Stage) -> None:
    run, _ = await a_run_to_replace(stage)
    task_id = await stage.value("select task_id from holdfast.dead_letter")
    await resolve(stage.engine, 1, task_id=task_id, actor="ada", reason="by hand")
    await stage.harness.runs.retry(run, only="list")
    assert await disposition(stage) == "resolved"
    await finish(stage.harness, outputs=OUTPUTS)


@check
async def letters_are_closed_only_of_runs_that_were_replaced(stage: Stage) -> None:
    await a_run_to_replace(stage)
    await repair_letters_once(stage.engine.database)
    assert await disposition(stage) == ""


@check
async def who_replaces_a_run_waits_for_none_of_its_letters(stage: Stage) -> None:
    """Whoever has a letter in hand may be about to lock the very run that is held here; a pass comes back for it."""
    run, letter = await a_run_to_replace(stage)
    replaced = "update holdfast.run set is_replaced = true where parent_run_id = $1"
    await stage.engine.database.fetch(replaced, int(run))
    async with stage.engine.database.transaction() as first, stage.impatient() as other:
        await first.fetch("select from holdfast.dead_letter where dead_letter_id = $1 for update", letter)
        assert not await other.fetch(sql("close_replaced"), None, 10, "x")
    await repair_letters_once(stage.engine.database)
    assert await disposition(stage) == "superseded"


@check
async def a_child_is_told_to_its_node_again_only_if_it_was_wanted(stage: Stage) -> None:
    run, child = await a_failed_parent(stage.harness)
    assert not await stage.engine.database.fetch(sql("unwant_child"), int(child))
    assert await stage.value("select is_answered from holdfast.run where run_id = $1", int(child))
    assert await children(stage.harness, run) == [(child, "f")]
