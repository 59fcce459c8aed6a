"""What guards the letters of nodes that failed without a task."""

from __future__ import annotations

from tests.core.flows import a_wait
from tests.guards.checks.stage import Stage, check

from holdfast.engine.lifecycle.dead_letters.commands import ignore
from holdfast.store.statements import sql

HELD = "select from holdfast.dead_letter for update"


async def a_rejection(stage: Stage) -> str:
    run: str = await stage.harness.runs.start(a_wait(config={"approval": True}))
    await stage.harness.runs.answer(run, "paid", is_given=False)
    return run


async def states(stage: Stage) -> str:
    return str(await stage.value("select string_agg(state, ' ' order by dead_letter_id) from holdfast.dead_letter"))


@check
async def a_letter_that_was_left_stays_left_whatever_becomes_of_its_node(stage: Stage) -> None:
    run = await a_rejection(stage)
    await stage.harness.runs.retry(run)
    await ignore(stage.engine, 1, task_id=int(run) + 1, actor="ann", reason="known")
    await stage.harness.runs.answer(run, "paid", is_given=False)
    assert await states(stage) == "ignored open"
    await stage.harness.runs.retry(run)
    await stage.harness.runs.answer(run, "paid", is_given=True)
    assert await states(stage) == "ignored resolved"


@check
async def the_letter_of_a_node_that_waits_again_is_not_resolved(stage: Stage) -> None:
    run = await a_rejection(stage)
    await stage.harness.runs.retry(run)
    assert not await stage.engine.database.fetch(sql("resolve_completed_nodes"), None, 10, "x")


@check
async def who_ends_a_node_waits_for_none_of_its_letters(stage: Stage) -> None:
    """Whoever has a letter in hand may be about to lock the very run that is held here."""
    run = await a_rejection(stage)
    await stage.harness.runs.retry(run)
    node = (1, int(run) + 1, int(run), 0, 1, 2, 2, "fingerprint", "cause", "x")
    async with stage.engine.database.transaction() as first, stage.impatient() as other:
        await first.fetch(HELD)
        await other.fetch(sql("park_node"), *node)
    assert await states(stage) == "retrying open"
    await stage.harness.runs.answer(run, "paid", is_given=True)
    await stage.engine.database.fetch("update holdfast.dead_letter set " + _AGAIN)
    async with stage.engine.database.transaction() as first, stage.impatient() as other:
        await first.fetch(HELD)
        assert not await other.fetch(sql("resolve_completed_nodes"), None, 10, "x")
    await stage.engine.database.fetch("delete from holdfast.dead_letter where fingerprint = 'fingerprint'")


_AGAIN = """
  state = 'retrying', dispatches = 1, dispatched_at = holdfast.instant(), disposition = 'retry_dispatched', actor = 'x',
  generation = 1
"""
