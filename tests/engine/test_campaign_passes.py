"""What passes of campaigns cost others: how much one looks at, how long all of them rest, and who makes the next."""

from __future__ import annotations

import asyncio

import pytest
from tests.engine.test_campaigns import a_group, complete_all, fail_all, start, state

from holdfast.core.tasks.outcome import Failed
from holdfast.engine.campaigns.advance import REST_SECONDS_MAX, TURN_SECONDS, campaigns_once
from holdfast.engine.campaigns.candidates import LOOK_BATCH, LOOKS_MAX
from holdfast.engine.campaigns.commands import abort_campaign, approve_campaign, resume_campaign, show_campaign
from holdfast.engine.queries.dead_letters import dead_groups
from holdfast.store.database import Session
from holdfast.store.statements import sql
from holdfast.testing import factories as a

LONG = 1_000_000.0
"""A rest that nobody waits for to its end."""


@pytest.fixture
def looks(monkeypatch):
    """How many letters each look of a campaign asked for."""
    asked = []
    fetch = Session.fetch

    async def spying(self, statement, *arguments):
        if statement == sql("next_campaign_dead_letters"):
            asked.append(arguments[-1])
        return await fetch(self, statement, *arguments)

    monkeypatch.setattr(Session, "fetch", spying)
    return asked


async def one_pass(harness, *, rest=LONG):
    engine = harness.engine
    return (await campaigns_once(engine.database, engine.catalog, rest=rest)).released


async def some_groups(harness, count):
    """Groups of one letter each, every one of its own fault."""
    for lease, n in [(await a.a_running_task(harness), n) for n in range(count)]:
        await harness.settle(lease, Failed(a.a_failure("validation: no", type=f"Fault{chr(65 + n)}")))
    return [group.fingerprint for group in await dead_groups(harness.engine.database, 1)]


async def place(harness):
    row = await harness.engine.database.fetch("select looked_to, passed_by from holdfast.campaign")
    return tuple(row[0])


async def test_a_campaign_whose_queues_are_all_paused_looks_at_one_letter(harness, looks):
    campaign_id = await start(harness, await a_group(harness, 30))
    await harness.pause("default")
    assert [await harness.campaigns_once() for _ in range(3)] == [0, 0, 0]
    assert looks == [1, 1, 1]
    assert "paused" in (await show_campaign(harness.engine, 1, campaign_id)).note
    await harness.resume("default")
    assert await harness.campaigns_once() == 5


async def test_a_pass_looks_at_a_part_of_what_is_paused_and_the_next_goes_on_there(harness, looks, monkeypatch):
    monkeypatch.setattr("holdfast.engine.campaigns.candidates.LOOK_BATCH", 3)
    monkeypatch.setattr("holdfast.engine.campaigns.candidates.LOOKS_MAX", 2)
    fingerprint = await a_group(harness, 20)
    assert await a_group(harness, 3, queue="mail") == fingerprint
    campaign_id = await start(harness, fingerprint, canary=2, at_once=2)
    await harness.pause("default")
    assert await harness.campaigns_once() == 0
    assert (looks, await place(harness)) == ([2, 3, 3], (8, True))
    assert "searches for dead letters" in (await show_campaign(harness.engine, 1, campaign_id)).note
    assert [await harness.campaigns_once() for _ in range(2)] == [0, 2]
    assert await complete_all(harness) == 2
    assert await harness.campaigns_once() == 1
    assert await complete_all(harness) == 1
    # Round after round; it is never taken for complete.
    for _ in range(7):
        assert await harness.campaigns_once() == 0
    assert await state(harness, campaign_id) == "ramp"
    await harness.resume("default")
    while await state(harness, campaign_id) == "ramp":
        await harness.campaigns_once()
        await complete_all(harness)
    view = await show_campaign(harness.engine, 1, campaign_id)
    assert (view.state, view.succeeded) == ("completed", 23)
    assert max(looks) <= 3


async def test_what_is_passed_by_goes_as_soon_as_a_small_group_may(harness):
    fingerprint = await a_group(harness, 3)
    await a_group(harness, 2, queue="mail")
    await start(harness, fingerprint)
    await harness.pause("default")
    assert await harness.campaigns_once() == 2
    await harness.resume("default")
    assert await harness.campaigns_once() == 3


async def test_a_campaign_that_releases_nothing_looks_at_nothing(harness, looks):
    """Stopped, aborted, or waiting for somebody: what is out is counted, and that is all."""
    campaign_id = await start(harness, await a_group(harness, 9), canary=2, needs_newer_version=True)
    assert await harness.campaigns_once() == 0
    assert looks == []
    await harness.engine.database.fetch("update holdfast.campaign set newer_than = null, state = 'canary'")
    assert await harness.campaigns_once() == 2
    looks.clear()
    await harness.engine.database.fetch("update holdfast.campaign set state = 'stopped'")
    assert await harness.campaigns_once() == 0
    await abort_campaign(harness.engine, 1, campaign_id, actor="ann", reason="enough")
    await complete_all(harness)
    assert await harness.campaigns_once() == 0
    assert (await show_campaign(harness.engine, 1, campaign_id)).succeeded == 2
    assert looks == []


async def test_a_pass_looks_no_further_than_it_needs(harness, looks):
    await start(harness, await a_group(harness, 40), canary=3)
    assert await harness.campaigns_once() == 3
    assert looks == [LOOK_BATCH] and LOOKS_MAX > 1
    assert await place(harness) == (3, False)


async def test_no_rest_is_longer_than_the_longest(harness, clock):
    """However long its pass waited for somebody's lock."""
    await start(harness, await a_group(harness, 40), canary=3)
    assert await one_pass(harness) == 3
    await complete_all(harness)
    assert await one_pass(harness) == 0
    await clock.advance(seconds=REST_SECONDS_MAX + 1)
    assert await one_pass(harness) == 3


async def test_campaigns_have_one_share_together(harness, clock):
    """One process at a time moves them, one after the other, and then all rest."""
    for fingerprint in await some_groups(harness, 3):
        await start(harness, fingerprint)
    turn = await harness.engine.database.fetchrow(sql("take_campaign_turn"), TURN_SECONDS)
    assert await one_pass(harness) == 0
    await harness.engine.database.fetch(sql("end_campaign_turn"), turn["rests_until"], 0.0, 0)
    assert await one_pass(harness) == 3
    await complete_all(harness)
    assert [await one_pass(harness) for _ in range(2)] == [0, 0]
    # Who died in its turn holds the others up for no longer than a turn.
    await clock.advance(seconds=REST_SECONDS_MAX + 1)
    await harness.engine.database.fetch(sql("take_campaign_turn"), TURN_SECONDS)
    await clock.advance(seconds=TURN_SECONDS + 1)
    await one_pass(harness)
    assert await harness.engine.database.fetchval("select count(*) from holdfast.campaign where ended_at is null") == 0


async def test_a_pass_whose_time_is_up_leaves_the_others_to_the_next(harness, clock, monkeypatch):
    monkeypatch.setattr("holdfast.engine.campaigns.advance.PASS_SECONDS", 0.0)
    moved = []
    for fingerprint in await some_groups(harness, 3):
        await start(harness, fingerprint)
    for _ in range(4):
        # A pass has always time for one, and is behind its time after it.
        moved.append(await one_pass(harness))
        await clock.advance(seconds=REST_SECONDS_MAX + 1)
    assert sum(moved) == 3 and max(moved) == 1


async def test_nobody_writes_anything_where_there_is_no_campaign(harness):
    assert await one_pass(harness) == 0
    assert await harness.engine.database.fetchval("select rests_until = '-infinity' from holdfast.campaign_turn")


@pytest.fixture
async def tries(engine):
    """Releasing letters fails until somebody mends it; answers how often it was tried."""
    for statement in (
        "create sequence tries",
        "create function no() returns trigger language plpgsql as "
        "$$begin perform nextval('tries'); raise 'not today'; end$$",
        "create trigger no before insert on holdfast.campaign_letter execute function no()",
    ):
        await engine.database.fetch(statement)

    async def count():
        return await engine.database.fetchval("select case when is_called then last_value else 0 end from tries")

    return count


async def test_a_campaign_whose_pass_failed_rests_and_says_so(harness, clock, tries):
    campaign_id = await start(harness, await a_group(harness, 5))
    engine = harness.engine
    for _ in range(3):
        assert await one_pass(harness, rest=1e-9) == 0
    assert await tries() == 1
    view = await show_campaign(engine, 1, campaign_id)
    assert (view.state, view.note) == ("canary", "its last pass failed; the next one comes in 5 seconds")
    assert view.rests_until is not None
    await clock.advance(seconds=REST_SECONDS_MAX + 1)
    assert (await show_campaign(engine, 1, campaign_id)).rests_until is None
    await engine.database.fetch("drop trigger no on holdfast.campaign_letter")
    assert await one_pass(harness, rest=1e-9) == 5


@pytest.mark.parametrize("verb", ["approve", "resume"])
async def test_who_lets_a_campaign_go_on_ends_its_rest(harness, verb):
    campaign_id = await start(harness, await a_group(harness, 5), needs_approval=verb == "approve")
    engine = harness.engine
    await engine.database.fetch(sql("rest_campaign"), campaign_id, 60.0, "rests")
    if verb == "approve":
        await approve_campaign(engine, 1, campaign_id, actor="bob")
    else:
        await engine.database.fetch("update holdfast.campaign set state = 'stopped'")
        await resume_campaign(engine, 1, campaign_id, actor="ann", reason="mended")
    assert await harness.campaigns_once() == 5


async def test_processes_that_come_together_take_one_turn(harness):
    await start(harness, await a_group(harness, 20), canary=4)
    passes = await asyncio.gather(*(one_pass(harness) for _ in range(4)))
    assert sorted(passes) == [0, 0, 0, 4]
    await fail_all(harness)


async def test_a_released_letter_is_written_once_and_told_as_asked_for_and_sent(harness):
    database = harness.engine.database
    await start(harness, await a_group(harness, 4), canary=4)
    for statement in (
        "create sequence writes",
        "create function counted() returns trigger language plpgsql as "
        "$$begin perform nextval('writes'); return new; end$$",
        "create trigger counted before update on holdfast.dead_letter for each row execute function counted()",
    ):
        await database.fetch(statement)
    assert await harness.campaigns_once() == 4
    assert await database.fetchval("select last_value from writes") == 4
    told = await database.fetch(
        "select kind, cardinality(task_ids) from holdfast.event where task_ids <> '{}' order by seq desc limit 3"
    )
    assert [tuple(row) for row in told[::-1]] == [
        ("task.revived", 4),
        ("dead_letter.retry_requested", 4),
        ("stateful_dead_letter_retry_requeued", 4),
    ]
