"""What is done again and again for runs looks at what there is to do, not at all that is open or was done before."""

from __future__ import annotations

import pytest
from tests.core.flows import a_flow, a_map, a_parent, a_sum, a_wait
from tests.flow.steps import step
from tests.store.visits import visits

from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.lifecycle.runs import signals
from holdfast.engine.lifecycle.runs.signals import START
from holdfast.engine.maintenance.loops import Loops
from holdfast.engine.maintenance.retention import begin_today
from holdfast.engine.notifications import NO_NOTIFICATIONS
from holdfast.store.statements import sql
from holdfast.testing.factories import a_failure

MANY = 300
NOWHERE = ["null"] * 4
OPEN_RUNS = {
    "canceling_runs": ["100", "0"],
    "children_to_cancel": ["100"],
    "children_to_hold": ["100"],
    "children_to_free": ["100"],
    "stalled_items": ["100", "0"],
}


async def row_version(harness, run):
    return await harness.engine.database.fetchval("select ctid::text from holdfast.run where run_id = $1", int(run))


async def settle_all(harness, outcome):
    leases = await harness.claim(100)
    for lease in leases:
        await harness.settle(lease, outcome)
    return len(leases)


@pytest.mark.parametrize("released", [0, 60])
async def test_a_run_with_a_limit_finds_what_it_holds_back_not_past_what_it_let_go(harness, released):
    run = await harness.runs.start(a_flow(alone=[f"n{number}" for number in range(100)]), max_active=5)
    ended = 0
    while ended < released:
        ended += await settle_all(harness, Completed(b"1"))
    seen = await visits(harness.engine.database, "held_nodes", run, "5")
    assert seen["node"] == 5


@pytest.fixture
async def run_again(harness):
    """A map of many members of which all but some failed, and which runs again."""

    async def made(count, *, completed=0, concurrency=None):
        run = await harness.runs.start(a_map(concurrency))
        await step(harness, outputs={0: {"all": [0] * count}})
        for number in range(count):
            lease = await harness.claim_one()
            await harness.settle(lease, Completed(b"1") if number < completed else Failed(a_failure()))
        await harness.runs.retry(run)
        return run

    return made


@pytest.mark.slow(
    "it runs a large flow or many of them; test_an_event_for_one_run_is_not_offered_to_the_others is fast"
)
async def test_the_next_member_that_runs_again_is_found_however_many_are_left(harness, run_again):
    run = await run_again(60, concurrency=2)
    rules = [run, "1", "3", "1", "1", "1", "5", "0", "0"]
    seen = await visits(harness.engine.database, "further_items", *rules, "10")
    assert 1 < seen["attempt"] + seen["failure"] <= 3 * (1 + 10)


async def test_members_that_completed_are_passed_over_once_in_bounded_looks(harness, run_again, monkeypatch):
    monkeypatch.setattr("holdfast.engine.lifecycle.runs.items.ITEMS_SCANNED_AHEAD", 3)
    run = await run_again(20, completed=19, concurrency=1)
    assert await settle_all(harness, Completed(b"1")) == 1
    while await settle_all(harness, Completed(b"1")):
        pass
    assert await harness.runs.state(run) == "completed"


async def test_when_all_members_that_run_again_went_nobody_looks_for_more(harness, run_again, monkeypatch):
    run = await run_again(5)
    monkeypatch.setattr("holdfast.store.sql.flows.taskless_nodes._SQL_FURTHER_ITEMS", "select nobody asks this")
    while await settle_all(harness, Completed(b"1")):
        pass
    assert await harness.runs.state(run) == "completed"


@pytest.mark.parametrize("statement", OPEN_RUNS)
async def test_open_runs_with_nothing_to_tell_are_not_looked_at(harness, statement):
    await harness.runs.start_many(a_flow("a>b"), [{}] * MANY)
    seen = await visits(harness.engine.database, statement, *OPEN_RUNS[statement])
    assert seen["run"] <= 4


@pytest.mark.breaks_invariants
@pytest.mark.parametrize(("statement", "word"), [("children_to_hold", "paused"), ("children_to_cancel", "canceled")])
async def test_runs_that_a_run_started_and_that_are_over_are_not_looked_at(harness, statement, word):
    await harness.runs.snapshot(a_sum(1))
    parent = await harness.runs.start(a_parent())
    await step(harness)
    [child] = await harness.engine.database.fetch("select * from holdfast.run where parent_run_id = $1", int(parent))
    await harness.engine.database.fetch(
        """
        insert into holdfast.run (
          run_id, tenant_id, snapshot_id, nodes, pending, active, state, ended_at, parent_run_id, parent_node, input,
          is_answered, is_replaced
        )
        select holdfast.take_span(9), 1, $2, 2, 0, 0, 'c', holdfast.instant(), $1, 0, '{}', true, true
        from generate_series(1, $3::int)
        """,
        int(parent),
        child["snapshot_id"],
        MANY,
    )
    await harness.engine.database.fetch(
        f"update holdfast.run set {word}_at = now(), {word}_by = 'ann' where run_id = $1", int(parent)
    )
    seen = await visits(harness.engine.database, statement, "100")
    assert seen["run"] <= MANY / 10


async def test_a_canceled_run_that_was_told_is_not_written_again(harness):
    run = await harness.runs.start(a_flow("a>b"))
    lease = await harness.claim_one()
    await harness.runs.cancel(run)
    before = await row_version(harness, run)
    for _ in range(2):
        await harness.runs.repair_once()
    assert await row_version(harness, run) == before
    await harness.settle(lease, Completed(b"1"))
    assert await harness.runs.state(run) == "canceled"


async def test_the_end_of_a_member_does_not_write_its_run(harness):
    run = await harness.runs.start(a_map())
    await step(harness, outputs={0: {"all": [1, 2]}})
    before = await row_version(harness, run)
    first, last = await harness.claim(10)
    await harness.settle(first, Completed(b"1"))
    assert await row_version(harness, run) == before
    await harness.settle(last, Completed(b"1"))
    assert await row_version(harness, run) != before


async def test_a_wait_that_begins_looks_for_events_of_its_own(harness):
    runs = await harness.runs.start_many(a_wait(), [{}] * MANY)
    which = ["null", "null", f"'{{{runs[-1]}}}'", *NOWHERE]
    seen = await visits(harness.engine.database, "answered_waits", *which, "9", "0")
    assert seen["node"] <= 4


@pytest.mark.slow(
    "it runs a large flow or many of them; test_an_event_for_one_run_is_not_offered_to_the_others is fast"
)
async def test_a_pass_looks_at_a_page_of_waits(harness):
    await harness.runs.start_many(a_wait(), [{}] * MANY)
    database, start = harness.engine.database, [str(one) for one in START]
    assert (await visits(database, "last_wait_of_page", *start, "10"))["node"] <= 10
    edge = await database.fetchrow(sql("last_wait_of_page"), *START, 10)
    seen = await visits(database, "answered_waits", "null", "null", "null", *start, *map(str, edge[:2]), "9", "0")
    assert 10 <= seen["node"] <= 12 and seen["signal"] <= 10


async def test_a_pass_where_nobody_waits_asks_no_more_than_that(harness, monkeypatch):
    await harness.runs.start(a_flow("a>b"))
    monkeypatch.delattr("holdfast.store.sql.flows.signals._SQL_ANSWERED_WAITS")
    done = await signals.deliver_once(harness.engine.database, harness.engine.catalog, after=(7, 7))
    assert (done.notifications, done.after) == (NO_NOTIFICATIONS, START)


async def test_passes_reach_every_wait_in_turn(harness, monkeypatch):
    """Nobody delivered the event: whoever kept it is gone."""
    monkeypatch.setattr(signals.deliver_once, "__kwdefaults__", {"after": START, "limit": 2})
    runs = await harness.runs.start_many(a_wait(), [{}] * 5)
    await harness.engine.database.fetch(sql("send_signal"), 1, "payment", None, "ann", b"1")
    loops, left = Loops(harness.engine), []
    for _ in range(4):
        await loops.runs()
        left.append([(await harness.runs.nodes(run))["paid"] for run in runs].count("running"))
    assert left == [3, 1, 0, 0]


async def test_an_event_for_one_run_is_not_offered_to_the_others(harness):
    await harness.runs.snapshot(a_wait())
    runs = await harness.runs.start_many(a_wait(), [{}] * MANY)
    below = await harness.engine.database.fetchval(sql("open_runs_below"), int(runs[7]))
    assert below == [int(runs[7])]
    await harness.runs.signal("payment", 1, run_id=runs[7])
    waiting = [run for run in runs if (await harness.runs.nodes(run))["paid"] == "running"]
    assert waiting == [run for run in runs if run != runs[7]]


async def test_blocks_that_begin_have_what_nodes_are_found_by(harness, clock):
    await clock.advance("1d")
    await begin_today(harness.engine.database)
    found = await harness.engine.database.fetch(
        """
        select p.inhrelid::regclass::text as part, count(i.inhrelid) as indexes
        from pg_inherits p
        join pg_index x on x.indrelid = p.inhrelid
        left join pg_inherits i on i.inhrelid = x.indexrelid and i.inhparent = 'holdfast.node_in_progress'::regclass
        where p.inhparent = 'holdfast.node'::regclass
        group by 1
        """
    )
    assert len(found) >= 2 and {row["indexes"] for row in found} == {1}


CHANGING = {
    "node": {"pending", "succeeded", "skipped", "failed", "items_next", "items_after", "items_pending", "items_failed"},
    "run": {"pending", "active", "failed", "is_awaited"},
}


@pytest.mark.parametrize("table", CHANGING)
async def test_no_index_names_what_changes_as_a_run_goes_along(engine, table):
    """Neither as its key nor in its condition: rows that are counted down would not be updated in place any more."""
    rows = await engine.database.fetch(
        """
        select distinct a.attname
        from pg_index i
        join pg_depend d on d.objid = i.indexrelid and d.classid = 'pg_class'::regclass and d.refobjid = i.indrelid
        join pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
        where i.indrelid = $1::text::regclass
        """,
        f"holdfast.{table}",
    )
    names = {row["attname"] for row in rows}
    assert {"run_id", "state"} <= names and not names & CHANGING[table]
