"""What guards dead letters: the state they leave, whose they are, and that one of many finds the task."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
from tests.core.flows import a_flow
from tests.guards.checks.stage import OTHER_TENANT_ID, Stage, another_tenant, check, refuses

from holdfast.core.dead_letters.dead_letter import DISPATCHES_MAX, TRANSITIONS, DeadLetterState
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.campaigns.commands import start_campaign
from holdfast.engine.lifecycle.dead_letters.reinject import reinject_once
from holdfast.engine.lifecycle.dead_letters.sweep import repair_letters_once, sweep_once
from holdfast.store.statements import sql
from holdfast.testing.factories import a_canceled_task, a_failed_task, a_failure

MOVES = {
    "resolve_superseded": (DeadLetterState.RESOLVED, ("ann",)),
    "exhaust_dead_letters": (DeadLetterState.IGNORED, ("ann",)),
    "request_dead_letter_retries": (DeadLetterState.RETRY_REQUESTED, ("ann", "fixed", DISPATCHES_MAX)),
    "mark_dispatched": (DeadLetterState.RETRYING, ([2.0], "ann", "fixed", None)),
    "request_and_dispatch_dead_letters": (DeadLetterState.RETRYING, ([2.0], "ann", "fixed", None)),
    "supersede_dead_letters": (DeadLetterState.RESOLVED, ("ann", "superseded by attempt 2")),
    "ignore_dead_letters": (DeadLetterState.IGNORED, ("ann", "known", "ignored", 1)),
    "resolve_dead_letters": (DeadLetterState.RESOLVED, ("ann", "mended", 1)),
}
"""Statements that move letters by their ids: where to, and their other arguments."""
_SET_STATE = """
update holdfast.dead_letter
set state = $2, disposition = 'before', actor = 'before', dispatches = 1, dispatched_at = holdfast.instant(),
  wants_sweep = $2 in ('retry_requested', 'retrying'), hidden_until = holdfast.instant() + interval '1 hour'
where dead_letter_id = $1
"""


async def a_letter(stage: Stage, **options: Any) -> tuple[str, int]:
    """A failed task and its letter."""
    task_id = await a_failed_task(stage.harness, **options)
    return task_id, int((await stage.harness.letters(task_id))[0].dead_letter_id)


async def asked_for(stage: Stage, task_id: str) -> None:
    """The letters of a task are asked to be retried."""
    await stage.engine.database.fetch(
        "update holdfast.dead_letter set state = 'retry_requested', disposition = 'retry_requested', actor = 'ann',"
        " wants_sweep = true where task_id = $1",
        int(task_id),
    )


@check
async def a_letter_leaves_only_the_states_it_may(stage: Stage) -> None:
    """Every statement moves letters along the published table, and no others."""
    _, letter_id = await a_letter(stage)
    for name, (to, arguments) in MOVES.items():
        for state in DeadLetterState:
            await stage.engine.database.fetch(_SET_STATE, letter_id, state.value)
            moved = await stage.engine.database.fetch(sql(name), [letter_id], *arguments)
            found = await stage.value("select state from holdfast.dead_letter where dead_letter_id = $1", letter_id)
            # Asked for and dispatched at once: two moves.
            first = DeadLetterState.RETRY_REQUESTED if name == "request_and_dispatch_dead_letters" else to
            assert not moved or first in TRANSITIONS[state], f"{name} moved a letter from {state} to {found}"
            assert found == (to if moved else state)
    await stage.engine.database.fetch(_SET_STATE, letter_id, DeadLetterState.RESOLVED.value)
    abandon = ([letter_id], "ann", "known", "abandoned", 1)
    assert not await stage.engine.database.fetch(sql("ignore_dead_letters"), *abandon)
    for state in DeadLetterState:
        await stage.engine.database.fetch(_SET_STATE, letter_id, state.value)
        handed = await stage.engine.database.fetch(sql("return_dead_letter"), letter_id)
        assert bool(handed) == (state is DeadLetterState.OPEN)


@check
async def what_is_ignored_can_only_be_abandoned(stage: Stage) -> None:
    """And only once: nothing is said twice."""
    _, letter_id = await a_letter(stage)
    moved = [
        await stage.engine.database.fetch(sql("ignore_dead_letters"), [letter_id], "ann", "known", how, 1)
        for how in ("ignored", "ignored", "abandoned", "abandoned")
    ]
    assert [len(rows) for rows in moved] == [1, 0, 1, 0]


@check
async def who_waited_for_a_letter_judges_it_as_it_is(stage: Stage) -> None:
    """Somebody else's change that was not yet stored when it was looked for counts."""
    _, letter_id = await a_letter(stage)
    for name in ("request_dead_letter_retries", "ignore_dead_letters", "resolve_dead_letters"):
        async with stage.engine.database.transaction() as session:
            await session.fetch(_SET_STATE, letter_id, DeadLetterState.RESOLVED.value)
            late = asyncio.ensure_future(stage.engine.database.fetch(sql(name), [letter_id], *MOVES[name][1]))
            await stage.waits(late)
        assert not await late, f"{name} moved a letter that was resolved"
        await stage.engine.database.fetch(_SET_STATE, letter_id, DeadLetterState.OPEN.value)


@check
async def what_is_resolved_stays_so(stage: Stage) -> None:
    task_id, letter_id = await a_letter(stage)
    await stage.engine.database.fetch(sql("resolve_dead_letters"), [letter_id], "ann", "mended by hand", 1)
    await stage.harness.redrive(task_id)
    await stage.harness.settle(await stage.harness.claim_one(), Completed(b"1"))
    [letter] = await stage.harness.letters(task_id)
    assert (letter.state, letter.disposition, letter.actor) == ("resolved", "resolved", "ann")
    assert not await stage.engine.database.fetch(sql("lock_dead_letters_of_task"), int(task_id), 1)
    await stage.engine.database.fetch("update holdfast.dead_letter set run_id = 77, node_no = 0")
    assert not await stage.engine.database.fetch(sql("lock_dead_letters_of_runs"), [77], 1, [])
    assert not await stage.engine.database.fetch(sql("lock_dead_letters_of_runs"), [], 1, [int(task_id)])


@check
async def a_retry_of_a_run_waits_for_who_judges_its_letters(stage: Stage) -> None:
    """Somebody who leaves a letter in that moment is not told that it retries."""
    run_id = await stage.harness.runs.start(a_flow())
    await stage.harness.settle(await stage.harness.claim_one(), Failed(a_failure()))
    async with stage.engine.database.transaction() as session:
        await session.fetch(_SET_STATE, 1, DeadLetterState.IGNORED.value)
        late = asyncio.ensure_future(stage.harness.runs.retry(run_id))
        await stage.waits(late)
    await late
    assert await stage.value("select state from holdfast.dead_letter") == "ignored"


@check
async def only_a_letter_that_retried_is_roused(stage: Stage) -> None:
    """One that nobody asked about is left, however often its task fails."""
    task_id, _ = await a_letter(stage)
    await stage.harness.redrive(task_id)
    await stage.harness.settle(await stage.harness.claim_one(), Failed(a_failure()))
    await stage.harness.redrive(task_id)
    await stage.engine.database.fetch(
        "update holdfast.dead_letter set state = 'open' where dead_letter_id ="
        " (select max(dead_letter_id) from holdfast.dead_letter)"
    )
    await stage.harness.settle(await stage.harness.claim_one(), Failed(a_failure()))
    await stage.engine.database.fetch("update holdfast.dead_letter set wants_sweep = false")
    await repair_letters_once(stage.engine.database)
    rows = await stage.engine.database.fetch("select wants_sweep from holdfast.dead_letter order by dead_letter_id")
    assert [row[0] for row in rows] == [True, False, False]


@check
async def a_letter_under_way_is_not_roused(stage: Stage) -> None:
    task_id, _ = await a_letter(stage)
    await stage.harness.redrive(task_id)
    assert await repair_letters_once(stage.engine.database) == 0


@check
async def only_a_letter_that_was_asked_for_is_parked(stage: Stage) -> None:
    """When its task was canceled; one that somebody left, a campaign's and one in other hands stay as they are."""
    park, database = sql("park_abandoned_dead_letters"), stage.engine.database
    task_id, letter_id = await a_letter(stage)
    await stage.harness.redrive(task_id)
    await stage.harness.cancel(task_id)
    change = "update holdfast.dead_letter set campaign_id = $1"
    await database.fetch(change, 7)
    assert not await database.fetch(park, 10, "x")
    await database.fetch(change, None)
    async with database.transaction() as session, stage.impatient() as other:
        await session.fetch("select from holdfast.dead_letter for update")
        assert not await other.fetch(park, 10, "x")
    await database.fetch(sql("ignore_dead_letters"), [letter_id], "ann", "known", "ignored", 1)
    assert not await database.fetch(park, 10, "x")


@check
async def sweeps_do_not_wait_for_one_another(stage: Stage) -> None:
    task_id, letter_id = await a_letter(stage)
    await asked_for(stage, task_id)
    held, held_id = await a_letter(stage)
    await stage.harness.redrive(held)
    await stage.harness.settle(await stage.harness.claim_one(), Failed(a_failure()))
    await stage.engine.database.fetch(
        "update holdfast.dead_letter set wants_sweep = false where task_id = $1", int(held)
    )
    async with stage.engine.database.transaction() as session, stage.impatient() as other:
        await session.fetch(
            "select from holdfast.dead_letter where dead_letter_id = any($1) for update", [letter_id, held_id]
        )
        assert not await other.fetch(sql("lock_dead_letters"), [letter_id])
        assert not await other.fetch(sql("requeue_stale_dead_letters"), 10)
    assert await repair_letters_once(stage.engine.database) == 1


@check
async def a_campaigns_letters_are_its_own(stage: Stage) -> None:
    flow = a_flow("a>b")
    run_id = await stage.harness.runs.start(flow)
    await stage.harness.settle(await stage.harness.claim_one(), Failed(a_failure()))
    node = stage.harness.runs.task_id(run_id, flow, "a")
    task_id, _ = await a_letter(stage)
    open_, _ = await a_letter(stage)
    for one in (task_id, node):
        await asked_for(stage, one)
    await stage.engine.database.fetch("update holdfast.dead_letter set campaign_id = 7")
    assert (await sweep_once(stage.engine.database, stage.engine.catalog)).count == 0
    assert (await reinject_once(stage.engine, "w", 30)).task_id is None
    assert await stage.state(open_) == "failed"
    await stage.engine.database.fetch("update holdfast.dead_letter set campaign_id = null")


@check
async def a_letter_without_the_option_is_not_retried(stage: Stage) -> None:
    _, letter_id = await a_letter(stage)
    await stage.engine.database.fetch("update holdfast.dead_letter set recovery_options = '{ignore}'")
    assert not await stage.engine.database.fetch(sql("request_dead_letter_retries"), [letter_id], "ann", "fixed", 5)
    sent = ([2.0], "ann", "fixed", None)
    assert not await stage.engine.database.fetch(sql("request_and_dispatch_dead_letters"), [letter_id], *sent)
    assert (await reinject_once(stage.engine, "w", 30)).task_id is None


@check
async def another_tenants_letters_are_left_alone(stage: Stage) -> None:
    await another_tenant(stage)
    task_id, letter_id = await a_letter(stage)
    who = ("eve", "mine")
    database = stage.engine.database
    assert not await database.fetch(sql("ignore_dead_letters"), [letter_id], *who, "ignored", OTHER_TENANT_ID)
    assert not await database.fetch(sql("resolve_dead_letters"), [letter_id], *who, OTHER_TENANT_ID)
    assert not await database.fetch(sql("lock_dead_letters_of_task"), int(task_id), OTHER_TENANT_ID)
    await asked_for(stage, task_id)
    await database.fetch("update holdfast.dead_letter set run_id = 77, node_no = 0")
    assert not await database.fetch(sql("lock_dead_letters_of_runs"), [77], OTHER_TENANT_ID, [])
    assert not await database.fetch(sql("lock_run_dead_letters"), 77, OTHER_TENANT_ID)
    await database.fetch(
        "update holdfast.dead_letter set run_id = null, node_no = null, state = 'open', wants_sweep = false"
    )
    assert (await reinject_once(stage.engine, "w", 30, tenant_id=OTHER_TENANT_ID)).task_id is None
    assert [one.state for one in await stage.harness.letters(task_id)] == ["open"]


@check
async def only_a_failed_task_of_the_tenant_is_revived(stage: Stage) -> None:
    await another_tenant(stage)
    failed, canceled = await a_failed_task(stage.harness), await a_canceled_task(stage.harness)
    why = ("ann", "fixed", None, False)
    assert not await stage.engine.database.fetch(sql("revive_tasks"), [int(failed)], OTHER_TENANT_ID, *why)
    assert not await stage.engine.database.fetch(sql("revive_tasks"), [int(canceled)], 1, *why)
    assert (await stage.state(failed), await stage.state(canceled)) == ("failed", "canceled")


@check
async def a_node_is_not_revived_without_its_run(stage: Stage) -> None:
    flow = a_flow("a>b")
    run_id = await stage.harness.runs.start(flow)
    await stage.harness.settle(await stage.harness.claim_one(), Failed(a_failure()))
    node = int(stage.harness.runs.task_id(run_id, flow, "a"))
    assert not await stage.engine.database.fetch(sql("revive_tasks"), [node], 1, "ann", "fixed", None, False)
    assert await stage.harness.runs.state(run_id) == "failed"


@check
async def only_an_open_letter_in_sight_is_taken(stage: Stage) -> None:
    task_id, letter_id = await a_letter(stage)
    for state, hidden in (("ignored", False), ("open", True)):
        await stage.engine.database.fetch(
            "update holdfast.dead_letter set state = $2, disposition = 'x', actor = 'x',"
            " hidden_until = case when $3 then holdfast.instant() + interval '1 minute' end where dead_letter_id = $1",
            letter_id,
            state,
            hidden,
        )
        assert (await reinject_once(stage.engine, "w", 30)).task_id is None
    assert await stage.state(task_id) == "failed"


@check
async def reinjecting_does_not_wait_for_another(stage: Stage) -> None:
    _, letter_id = await a_letter(stage)
    async with stage.engine.database.transaction() as session, stage.impatient() as other:
        await session.fetch("select from holdfast.dead_letter where dead_letter_id = $1 for update", letter_id)
        assert not await other.fetch(sql("take_dead_letter"), 1, 30.0)


@check
async def a_paused_run_is_left_by_who_asks_for_none_in_particular(stage: Stage) -> None:
    """Neither who empties the dead letters nor a campaign runs it again."""
    run_id = await stage.harness.runs.start(a_flow(alone=("x", "y")))
    node = await stage.harness.claim_one()
    await stage.harness.settle(node, Failed(a_failure()))
    await stage.harness.runs.pause(run_id)
    assert (await reinject_once(stage.engine, "w", 30)).task_id is None
    [letter] = await stage.harness.letters(node.task_id)
    await a_letter(stage)
    await start_campaign(stage.engine, 1, letter.fingerprint, actor="ann", reason="fixed")
    assert await stage.harness.campaigns_once() == 1


@check
async def a_lease_has_one_holder(stage: Stage) -> None:
    lease, release = sql("lease_dead_task"), sql("release_dead_task")
    database = stage.engine.database
    assert await database.fetch(lease, 7, "first", 30.0) and await database.fetch(lease, 7, "first", 30.0)
    assert not await database.fetch(lease, 7, "second", 30.0)
    assert not await database.fetch(release, 7, "second")
    await stage.clock.advance(seconds=31)
    assert await database.fetch(lease, 7, "second", 30.0)


@check
async def only_old_resolved_letters_are_forgotten(stage: Stage) -> None:
    done, _ = await a_letter(stage)
    await stage.harness.redrive(done)
    await stage.harness.settle(await stage.harness.claim_one(), Completed(b"1"))
    (again, under_way), (_, closed) = await a_letter(stage), await a_letter(stage)
    await stage.harness.redrive(again)
    database, forget = stage.engine.database, sql("delete_old_dead_letters")
    await database.fetch(sql("lease_dead_task"), 7, "first", 30.0)
    await database.fetch(sql("resolve_dead_letters"), [closed], "ann", "mended", 1)
    await database.fetch(forget, 7.0, 10)
    assert await stage.value("select count(*) from holdfast.dead_letter") == 3
    assert await stage.value("select count(*) from holdfast.dead_lease") == 1
    await stage.clock.advance(seconds=8 * 86_400)
    await database.fetch(forget, 7.0, 10)
    left = await stage.value("select array_agg(dead_letter_id order by dead_letter_id) from holdfast.dead_letter")
    assert left == [under_way, closed]


@check
async def the_schema_refuses_to_sweep_what_nobody_asked_for(stage: Stage) -> None:
    await a_letter(stage)
    with refuses(asyncpg.CheckViolationError):
        await stage.engine.database.fetch("update holdfast.dead_letter set wants_sweep = true")


@check
async def the_schema_refuses_a_retry_that_was_never_dispatched(stage: Stage) -> None:
    await a_letter(stage)
    with refuses(asyncpg.CheckViolationError):
        await stage.engine.database.fetch(
            "update holdfast.dead_letter set state = 'retrying', disposition = 'x', actor = 'x'"
        )
