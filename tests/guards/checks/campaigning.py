"""What guards campaigns: whose they are, where they stand, and which letters are theirs to take."""

from __future__ import annotations

import asyncio

import asyncpg
from tests.core.flows import a_flow
from tests.guards.checks.recovering import a_letter
from tests.guards.checks.stage import OTHER_TENANT_ID, Stage, another_tenant, check, refuses

from holdfast.core.dead_letters.campaign import TRANSITIONS, CampaignState
from holdfast.core.tasks.outcome import Failed
from holdfast.engine.campaigns.commands import abort_campaign, start_campaign
from holdfast.errors import Conflict, NotFound
from holdfast.store.statements import sql
from holdfast.testing.factories import a_failure

STEERING = {
    "approve_campaign": (CampaignState.CANARY, ()),
    "abort_campaign": (CampaignState.ABORTED, ("enough",)),
    "resume_campaign": (CampaignState.CANARY, ("fixed", None)),
}


async def a_campaign(stage: Stage, letters: int = 2, **options: object) -> tuple[int, str]:
    """A campaign over some letters, and its group."""
    for _ in range(letters):
        task_id, _ = await a_letter(stage)
    [letter] = await stage.harness.letters(task_id)
    view = await start_campaign(stage.engine, 1, letter.fingerprint, actor="ann", reason="fixed", **options)
    return int(view.campaign_id), letter.fingerprint


async def failed_again(stage: Stage) -> str:
    """A task with two letters of one fault, of which the newer stands for it; answers the fault."""
    task_id, _ = await a_letter(stage)
    await stage.harness.redrive(task_id)
    await stage.harness.settle(await stage.harness.claim_one(), Failed(a_failure()))
    await stage.engine.database.fetch("update holdfast.dead_letter set state = 'open', wants_sweep = false")
    return (await stage.harness.letters(task_id))[0].fingerprint


@check
async def a_campaign_counts_what_stands_for_a_task(stage: Stage) -> None:
    fingerprint = await failed_again(stage)
    _, ignored = await a_letter(stage)
    _, unwanted = await a_letter(stage)
    _, mended = await a_letter(stage)
    under_way, left = await a_letter(stage)
    await stage.harness.redrive(under_way)
    await stage.engine.database.fetch(sql("ignore_dead_letters"), [ignored, left], "ann", "known", "ignored", 1)
    await stage.engine.database.fetch(sql("resolve_dead_letters"), [mended], "ann", "mended", 1)
    await stage.engine.database.fetch(
        "update holdfast.dead_letter set recovery_options = '{ignore}' where dead_letter_id = $1", unwanted
    )
    view = await start_campaign(stage.engine, 1, fingerprint, actor="ann", reason="fixed")
    assert view.total == 2
    await stage.engine.database.fetch("update holdfast.campaign set state = 'stopped'")
    await stage.engine.database.fetch(sql("resume_campaign"), int(view.campaign_id), 1, "ann", "fixed", None)
    assert await stage.value("select total from holdfast.campaign") == 2


@check
async def a_canceled_runs_letter_does_not_go(stage: Stage) -> None:
    flow = a_flow(alone=("x", "y"))
    run_id = await stage.harness.runs.start(flow)
    failing, _ = await stage.harness.claim(2)
    await stage.harness.settle(failing, Failed(a_failure()))
    await stage.harness.runs.cancel(run_id)
    [letter] = await stage.harness.letters(failing.task_id)
    assert letter.state == "open"
    with refuses(NotFound):
        await start_campaign(stage.engine, 1, letter.fingerprint, actor="ann", reason="fixed")
    assert not await stage.engine.database.fetch(sql("take_dead_letter"), 1, 60.0)


@check
async def a_campaign_over_nothing_does_not_begin(stage: Stage) -> None:
    with refuses(NotFound):
        await start_campaign(stage.engine, 1, "nope", actor="ann", reason="fixed")


@check
async def one_campaign_at_a_time_works_on_a_group(stage: Stage) -> None:
    _, fingerprint = await a_campaign(stage)
    with refuses(Conflict):
        await start_campaign(stage.engine, 1, fingerprint, actor="bob", reason="me too")


@check
async def a_campaign_is_its_tenants(stage: Stage) -> None:
    await another_tenant(stage)
    campaign_id, fingerprint = await a_campaign(stage, needs_approval=True)
    with refuses(NotFound):
        await start_campaign(stage.engine, OTHER_TENANT_ID, fingerprint, actor="eve", reason="mine")
    for name, (_, given) in STEERING.items():
        state = {"resume_campaign": "stopped"}.get(name, "awaiting_approval")
        await stage.engine.database.fetch("update holdfast.campaign set state = $1, approved_by = 'bob'", state)
        assert not await stage.engine.database.fetch(sql(name), campaign_id, OTHER_TENANT_ID, "eve", *given)
    ids = await stage.value("select array_agg(dead_letter_id) from holdfast.dead_letter")
    taken = await stage.engine.database.fetch(
        sql("take_campaign_dead_letters"), OTHER_TENANT_ID, fingerprint, 2**62, campaign_id, ids
    )
    assert not taken


@check
async def a_campaign_moves_only_from_where_it_is(stage: Stage) -> None:
    """Every steering statement moves campaigns along the published table, and no others."""
    campaign_id, _ = await a_campaign(stage)
    for name, (to, given) in STEERING.items():
        for state in CampaignState:
            await stage.engine.database.fetch(
                "update holdfast.campaign set state = $1, approved_by = 'bob',"
                " ended_at = case when $1 in ('completed', 'aborted') then now() end",
                state.value,
            )
            moved = await stage.engine.database.fetch(sql(name), campaign_id, 1, "cy", *given)
            found = await stage.value("select state from holdfast.campaign")
            assert not moved or to in TRANSITIONS[state], f"{name} moved a campaign from {state} to {found}"
            assert found == (to if moved else state)
    assert await stage.value("select state from holdfast.campaign") == "aborted"
    stale = await stage.engine.database.fetch(sql("move_campaign"), campaign_id, "canary", "ramp", "", "x")
    assert not stale


@check
async def who_waited_for_a_campaign_judges_it_as_it_is(stage: Stage) -> None:
    campaign_id, _ = await a_campaign(stage)
    async with stage.engine.database.transaction() as session:
        await session.fetch("update holdfast.campaign set state = 'completed', ended_at = now()")
        late = asyncio.ensure_future(
            stage.engine.database.fetch(sql("abort_campaign"), campaign_id, 1, "ann", "enough")
        )
        await stage.waits(late)
    assert not await late, "a campaign that was over was aborted"


@check
async def a_campaign_takes_only_what_is_its_to_take(stage: Stage) -> None:
    """What is open, or was left while its task rests; of the group as it was, and as far as it may be retried."""
    under_way, moving = await a_letter(stage)
    campaign_id, fingerprint = await a_campaign(stage, letters=4)
    ids = await stage.value("select array_agg(dead_letter_id order by dead_letter_id) from holdfast.dead_letter")
    _, later = await a_letter(stage)
    await stage.harness.redrive(under_way)
    database = stage.engine.database
    await database.fetch(sql("ignore_dead_letters"), [moving, ids[1]], "ann", "known", "ignored", 1)
    await database.fetch(sql("resolve_dead_letters"), [ids[2]], "ann", "mended", 1)
    await database.fetch(
        "update holdfast.dead_letter set recovery_options = '{ignore}' where dead_letter_id = $1", ids[3]
    )
    given = (1, fingerprint, ids[-1], campaign_id, [*ids, later])
    taken = await database.fetch(sql("take_campaign_dead_letters"), *given)
    assert [row["dead_letter_id"] for row in taken] == [ids[1], ids[4]]
    await abort_campaign(stage.engine, 1, campaign_id, actor="ann", reason="")


@check
async def a_paused_queue_gets_nothing_of_a_campaign(stage: Stage) -> None:
    await a_letter(stage, queue="other")
    await a_campaign(stage)
    await stage.harness.pause("default")
    assert await stage.harness.campaigns_once() == 1


@check
async def campaigns_do_not_wait_for_one_another(stage: Stage) -> None:
    campaign_id, fingerprint = await a_campaign(stage)
    ids = await stage.value("select array_agg(dead_letter_id) from holdfast.dead_letter")
    async with stage.engine.database.transaction() as session, stage.impatient() as other:
        await session.fetch("select from holdfast.campaign for update")
        assert not await other.fetch(sql("lock_campaign"), campaign_id)
        await session.fetch("select from holdfast.dead_letter for update")
        given = (1, fingerprint, 2**62, campaign_id, ids)
        assert not await other.fetch(sql("take_campaign_dead_letters"), *given)


@check
async def a_campaign_that_rests_is_left_alone(stage: Stage) -> None:
    campaign_id, _ = await a_campaign(stage)
    await stage.engine.database.fetch(sql("rest_campaign"), campaign_id, 60.0, "rests")
    assert await stage.harness.campaigns_once() == 0


@check
async def one_at_a_time_moves_campaigns(stage: Stage) -> None:
    """Who took its turn too long ago ends no turn of another."""
    database = stage.engine.database
    late = await database.fetchrow(sql("take_campaign_turn"), 0.0)
    turn = await database.fetchrow(sql("take_campaign_turn"), 60.0)
    assert not await database.fetch(sql("take_campaign_turn"), 60.0)
    assert not await database.fetch(sql("end_campaign_turn"), late["rests_until"], 0.0, 0)
    assert await database.fetch(sql("end_campaign_turn"), turn["rests_until"], 60.0, 0)
    assert not await database.fetch(sql("take_campaign_turn"), 60.0)


@check
async def four_eyes_are_needed(stage: Stage) -> None:
    """Of who started it first, then of who resumed it."""
    campaign_id, _ = await a_campaign(stage, needs_approval=True)
    database = stage.engine.database
    for asks, approves in (("ann", "bob"), ("bob", "ann")):
        assert not await database.fetch(sql("approve_campaign"), campaign_id, 1, asks)
        assert await database.fetch(sql("approve_campaign"), campaign_id, 1, approves)
        await database.fetch("update holdfast.campaign set state = 'stopped'")
        await database.fetch(sql("resume_campaign"), campaign_id, 1, approves, "fixed", None)


@check
async def four_eyes_are_needed_by_the_schema(stage: Stage) -> None:
    await a_campaign(stage)
    with refuses(asyncpg.CheckViolationError):
        await stage.engine.database.fetch("update holdfast.campaign set approved_by = started_by")
