"""What guards the outbox of hints: what is due, what still waits, and that relays keep out of each other's way."""

from __future__ import annotations

import asyncio

from tests.guards.checks.stage import Stage, check

from holdfast.core.tasks.outcome import Completed
from holdfast.engine.wakeups.outbox import replenish_once, take_hints, tell_away, tell_back, write_hints
from holdfast.store.statements import sql
from holdfast.testing.factories import a_running_task, a_task

RESEND_SECONDS = 30.0


async def _on(stage: Stage) -> None:
    await write_hints(stage.engine, True, actor="test", reason="")


async def _taken(stage: Stage) -> list[int]:
    return [hint.task_id for hint in await take_hints(stage.engine.database, resend_seconds=RESEND_SECONDS)]


async def _hints(stage: Stage) -> int:
    return int(await stage.value("select count(*) from holdfast.hint"))


@check
async def a_hint_is_not_sent_again_before_its_time(stage: Stage) -> None:
    await _on(stage)
    await stage.harness.enqueue(a_task())
    assert len(await _taken(stage)) == 1
    await stage.clock.advance(seconds=RESEND_SECONDS - 1)
    assert await _taken(stage) == []


@check
async def a_task_that_runs_needs_no_hint(stage: Stage) -> None:
    await _on(stage)
    await a_running_task(stage.harness)
    assert await _taken(stage) == []
    assert await _hints(stage) == 0


@check
async def hints_that_nobody_needs_are_forgotten_and_others_stay(stage: Stage) -> None:
    await _on(stage)
    lease = await a_running_task(stage.harness)
    assert await replenish_once(stage.engine.database) == 0 == await _hints(stage)
    await stage.harness.settle(lease, Completed(b"null"))
    waits = await stage.harness.enqueue(a_task())
    await replenish_once(stage.engine.database)
    assert await stage.value("select array_agg(task_id::text) from holdfast.hint") == [waits.task_id]


@check
async def relays_do_not_wait_for_one_another(stage: Stage) -> None:
    await _on(stage)
    await stage.harness.enqueue(a_task())
    for statement, arguments in ((sql("take_hints"), (10, 1.0, 1.0)), (sql("clear_hints"), (10,))):
        if statement == sql("clear_hints"):
            await stage.harness.claim_one()
        async with stage.engine.database.transaction() as held:
            await held.fetch("select from holdfast.hint for update")
            async with stage.impatient() as other:
                assert await other.fetch(statement, *arguments) == []


@check
async def a_paused_queue_gets_no_further_hints(stage: Stage) -> None:
    await stage.harness.enqueue(a_task())
    await _on(stage)
    await stage.harness.pause()
    assert await replenish_once(stage.engine.database) == 0
    await stage.harness.resume()
    assert await replenish_once(stage.engine.database) == 1


@check
async def no_hints_are_filled_in_while_they_are_off(stage: Stage) -> None:
    await stage.harness.enqueue(a_task())
    assert await replenish_once(stage.engine.database) == 0
    await tell_away(stage.engine.database, "sqs", "refused")
    assert await stage.value("select away_since from holdfast.wake") is None
    await tell_back(stage.engine.database, "sqs")
    assert await stage.value("select carrier from holdfast.wake") == ""


@check
async def two_relays_fill_in_a_hint_once(stage: Stage) -> None:
    await stage.harness.enqueue(a_task())
    await _on(stage)
    async with stage.engine.database.transaction() as first:
        assert len(await first.fetch(sql("fill_hints"))) == 1
        second = asyncio.ensure_future(replenish_once(stage.engine.database))
        await stage.waits(second)
    assert await second == 0
