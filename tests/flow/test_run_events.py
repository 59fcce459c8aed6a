"""The events of a run: they tell every change, can be resumed anywhere, and end with the run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from tests.core.flows import a_choice, a_diamond, a_flow, a_map, a_parent, a_sum, a_wait
from tests.flow.run_replay import Replay
from tests.flow.steps import finish, step
from tests.flow.test_views import act, stories

from holdfast.client.run_events import run_events
from holdfast.core.tasks.outcome import Completed
from holdfast.engine.queries.events import START, cursor_of, run_events_after
from holdfast.errors import Invalid, NotFound
from holdfast.testing import factories as a
from holdfast.testing.engine_harness import EngineHarness

VERSIONS = count(1)


async def told(harness, run, after=START):
    """Everything that is told of a run that is over."""
    return [event async for event in run_events(harness.engine, int(run), after)]


def kinds(events):
    return [(event.kind, event.node) for event in events]


def fold(events, flow):
    """Where nodes and run stand by their events alone."""
    numbers = flow.graph().number
    replay = Replay(len(flow.nodes))
    for event in events:
        if event.node is None:
            replay.of_run(event.kind, event.order)
        elif event.item is None:
            replay.of_node(event.kind, numbers[event.node], event.attempt, event.order)
    states = {name: replay.states[number] for name, number in numbers.items()}
    return replay.run_state, states


async def test_a_run_tells_each_step_of_its_nodes(harness):
    run = await harness.runs.start(a_flow("a>b"))
    await finish(harness)
    assert kinds(await told(harness, run)) == [
        ("execution.started", None), ("task.queued", "a"), ("task.started", "a"), ("task.completed", "a"),
        ("task.queued", "b"), ("task.started", "b"), ("task.completed", "b"), ("execution.completed", None),
    ]  # fmt: skip


async def test_pausing_resuming_and_canceling_tell_who_and_why(harness):
    run = await harness.runs.start(a_flow("a>b"))
    await harness.runs.pause(run, actor="ada", reason="look")
    await harness.runs.resume(run, actor="bob", reason="fine")
    await harness.runs.cancel(run, actor="ada", reason="wrong day")
    said = {event.kind: event.detail for event in await told(harness, run) if event.detail}
    assert said == {
        "execution.paused": {"actor": "ada", "reason": "look"},
        "execution.resumed": {"actor": "bob", "reason": "fine"},
        "execution.canceling": {"actor": "ada", "reason": "wrong day"},
    }


@pytest.mark.parametrize("make", [a_wait, a_map, a_parent, a_choice], ids=lambda make: make.__name__)
async def test_nodes_that_run_no_task_are_told_too(harness, make):
    await harness.runs.snapshot(a_sum(1))
    flow = make()
    run = await harness.runs.start(flow)
    await harness.runs.signal("payment", {"amount": 5})
    await finish(harness, outputs={0: {"n": 0, "v": 1, "all": [1, 2]}, 1: {"v": 1}})
    events = await told(harness, run)
    assert fold(events, flow) == ("completed", await harness.runs.nodes(run))
    bare = flow.nodes[1 if make in (a_map, a_choice) else 0].name
    seen = [event.kind for event in events if event.node == bare and event.item is None]
    assert seen == (["task.skipped"] if make is a_choice else ["task.started", "task.completed"])


async def test_items_are_told_with_their_numbers_and_other_runs_are_not(harness):
    run, other = await harness.runs.start(a_map()), await harness.runs.start(a_flow("a>b"))
    await finish(harness, outputs={0: {"all": [1, 2]}})
    events = await told(harness, run)
    items = {(event.node, event.item, event.kind) for event in events if event.item is not None}
    assert items == {("double", item, f"task.{kind}") for item in (0, 1) for kind in ("started", "completed")}
    assert {event.node for event in await told(harness, other)} == {None, "a", "b"}


async def test_a_canceled_wait_and_a_rejected_one_are_told(harness):
    for end, kind in (("cancel", "task.canceled"), ("expire", "task.failed")):
        flow = replace(a_wait(timeout_seconds=60.0), version=next(VERSIONS))
        run = await harness.runs.start(flow)
        if end == "cancel":
            await harness.runs.cancel(run)
        else:
            await harness.engine.database.fetch("update holdfast.node set deadline = holdfast.instant()")
            await harness.runs.repair_once()
        events = await told(harness, run)
        assert (kind, "paid") in kinds(events)
        assert fold(events, flow)[1] == await harness.runs.nodes(run)


async def test_a_stream_resumed_at_any_event_loses_and_repeats_nothing(harness):
    run = await harness.runs.start(a_diamond())
    await finish(harness, fail=[1])
    await harness.runs.retry(run)
    await finish(harness)
    events = await told(harness, run)
    assert len({event.cursor for event in events}) == len(events)
    for number, event in enumerate(events):
        assert await told(harness, run, event.cursor) == events[number + 1 :]


async def test_a_stream_read_in_small_pages_is_the_same(harness):
    run = await harness.runs.start(a_diamond())
    for _ in range(5):
        await a.a_completed_task(harness)
    await finish(harness)
    whole, cursor, found, tail = await told(harness, run), START, [], ""
    while True:
        page = await run_events_after(harness.engine.database, 1, int(run), cursor, ended_by=tail, limit=1)
        found += page.events
        cursor, tail = page.cursor, page.tail
        if page.is_end:
            break
    assert [event.cursor for event in found] == [event.cursor for event in whole]


async def test_a_stream_follows_a_run_until_it_ends(harness):
    run = await harness.runs.start(a_flow("a>b"))
    following = asyncio.ensure_future(told(harness, run))
    await step(harness)
    assert not following.done()
    await step(harness)
    assert kinds(await following)[-1] == ("execution.completed", None)


async def test_a_stream_does_not_end_before_what_an_open_transaction_may_still_tell(harness):
    run = await harness.runs.start(a_flow("a>b"))
    async with harness.engine.database.transaction() as session:
        await session.fetch("select pg_current_xact_id()")
        await finish(harness)
        page = await run_events_after(harness.engine.database, 1, int(run))
        assert not page.is_end
        again = await run_events_after(harness.engine.database, 1, int(run), page.cursor, ended_by=page.tail)
        assert not again.is_end
    assert kinds(await told(harness, run, again.cursor))[-1] == ("execution.completed", None)


async def test_after_the_last_event_the_stream_of_an_ended_run_ends_at_once(harness):
    run = await harness.runs.start(a_flow("a>b"))
    await finish(harness)
    last = (await told(harness, run))[-1]
    assert await told(harness, run, last.cursor) == []


async def test_unknown_runs_and_cursors_are_refused(harness):
    run = await harness.runs.start(a_flow("a>b"))
    with pytest.raises(NotFound):
        await told(harness, "77")
    for text in ("", "1", "x:1", "1:2:3:4", "-1:0", "1:²"):
        with pytest.raises(Invalid):
            await told(harness, run, text)
    assert cursor_of("7:8:9") == ("7", 8, 9)
    await finish(harness)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(stories())
def test_folding_its_events_gives_the_states_of_any_run(on_engine, story):
    async def play(engine) -> None:
        flow, acts, limit, retries = story
        harness, held = EngineHarness(engine), []
        harness.runs.policy = replace(
            harness.runs.policy, max_retries=int(retries), base_backoff_secs=0.0, jitter_factor=0.0
        )
        flow = replace(flow, version=next(VERSIONS))
        run = await harness.runs.start(flow, max_active=limit)
        for what in acts:
            await act(harness, run, what, held)
        if await harness.runs.state(run) == "open":
            await act(harness, run, "cancel", held)
        for lease in held:
            await harness.settle(lease, Completed(b"1"))
        state = await harness.runs.state(run)
        assert fold(await told(harness, run), flow) == (state, await harness.runs.nodes(run))

    on_engine(play)
