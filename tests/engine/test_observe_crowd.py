"""Readers of a quiet tenant pass what a busy one did once, a bounded part at a time, and miss nothing of their own."""

from __future__ import annotations

import pytest
from tests.core.flows import a_flow
from tests.engine.test_observe import until_settled
from tests.net.receiver import receiving

from holdfast.engine.queries.events import event_tail, events_after, position, run_events_after
from holdfast.engine.queries.metrics import Measure
from holdfast.engine.webhooks.commands import add_webhook, show_webhook
from holdfast.engine.webhooks.deliver import deliver_webhooks_once
from holdfast.net.address import EgressRules
from holdfast.net.guarded_request import Guarded
from holdfast.server.event_tail import EncodedPage, Follower
from holdfast.settings.settings import EgressSettings, Settings
from holdfast.testing.factories import a_running_task

QUIET, BUSY = 1, 2
CROWD = """
    insert into holdfast.event (tenant_id, kind, task_ids, attempts)
    select $1, 'queue.paused', '{}', '{}' from generate_series(1, $2::int)
"""


@pytest.fixture
def holdfast_settings():
    return Settings(egress=EgressSettings(allow=("127.0.0.0/8",), ports="*"))


@pytest.fixture
def crowd(engine, harness):
    """Let the busy tenant do something; answers the cursor of the last of it."""

    async def happen(count):
        await engine.database.fetch(CROWD, BUSY, count)
        await until_settled(harness)
        last = await engine.database.fetchrow("select max(xid)::text as xid, max(seq) as seq from holdfast.event")
        return position(f"{last['xid']}:{last['seq']}")

    return happen


async def test_every_reader_of_a_quiet_tenant_ends_behind_what_others_did(engine, crowd):
    tail = await event_tail(engine.database)
    follower, measure = Follower(engine.of(QUIET), QUIET, tail), Measure()
    await measure.read(engine.database, QUIET)
    guarded = Guarded(EgressRules.of(engine.settings.egress))
    async with receiving() as receiver:
        await add_webhook(engine, QUIET, "hook", receiver.url, actor="anna")
        last = await crowd(10_000)
        while not await follower.poll():
            pass
        await measure.read(engine.database, QUIET)
        await deliver_webhooks_once(engine, guarded)
    await guarded.close()
    assert position(follower.looked) >= last and follower.cursor == tail
    assert position((await show_webhook(engine.database, QUIET, "hook")).cursor) >= last
    assert position(measure._tallies[QUIET].cursor) >= last


async def test_far_behind_in_a_crowd_a_reader_goes_on_in_bounded_steps_and_misses_nothing(
    engine, harness, crowd, monkeypatch
):
    monkeypatch.setattr("holdfast.engine.queries.events.PASSED_MAX", 100)
    tail = await event_tail(engine.database)
    await crowd(250)
    mine = await a_running_task(harness)
    last = await crowd(250)
    for database in (engine.database, engine.of(QUIET).database):
        found, cursor, steps, is_all = [], tail, 0, False
        while not is_all:
            page = await events_after(database, QUIET, cursor)
            found, cursor, steps, is_all = found + page.events, page.cursor, steps + 1, page.is_all
        assert [event.task_id for event in found] == [mine.task_id]
        assert steps == 6 and position(cursor) >= last


async def test_who_follows_a_quiet_run_passes_what_others_did(engine, harness, crowd, monkeypatch):
    run_id = int(await harness.runs.start(a_flow("a>b")))
    await until_settled(harness)
    before = await run_events_after(engine.database, QUIET, run_id)
    last = await crowd(250)
    page = await run_events_after(engine.database, QUIET, run_id, before.cursor)
    assert (page.events, page.is_all) == ([], True) and position(page.cursor) >= last
    monkeypatch.setattr("holdfast.engine.queries.events.PASSED_MAX", 100)
    page = await run_events_after(engine.database, QUIET, run_id, before.cursor)
    assert not page.is_all and position(before.cursor) < position(page.cursor) < last


async def test_what_a_quiet_tenant_does_at_last_is_told_to_readers_who_stand_where_it_was_silent(
    engine, harness, crowd
):
    follower = Follower(engine.of(QUIET), QUIET, await event_tail(engine.database))
    stands = follower.cursor
    await crowd(10)
    await follower.poll()
    mine = await a_running_task(harness)
    await until_settled(harness)
    await follower.poll()
    assert follower.page.start == stands and mine.task_id.encode() in follower.page.encoded
    assert follower.page.end == follower.cursor


@pytest.mark.parametrize(
    ("case", "cursor", "looked", "page", "expected"),
    [
        ("told: behind it", "20:0", "30:0", EncodedPage("9:1", b"x", "9:2", "31:0"), "9:2"),
        ("silent: with everybody", "20:0", "30:0", EncodedPage("9:1", b"", "9:1", "31:0"), "20:0"),
        ("behind what was told: read on", "20:5", "30:0", EncodedPage("9:1", b"", "9:1", "19:7"), "19:7"),
        (
            "ahead of what was told, which was looked at",
            "20:5",
            "30:0",
            EncodedPage("25:1", b"", "25:1", "31:0"),
            "20:5",
        ),
        ("ahead of what was looked at: would repeat", "20:5", "22:0", EncodedPage("25:1", b"", "25:1", "31:0"), "25:1"),
        ("in the middle of the last batch", "20:5", "30:0", EncodedPage("20:5:2", b"", "20:5:2", "31:0"), "20:5"),
    ],
)
def test_a_reader_joins_the_others_where_that_neither_misses_nor_repeats(case, cursor, looked, page, expected):
    follower = Follower(None, QUIET, cursor)
    follower.looked = looked
    assert follower.joined(page) == expected, case
