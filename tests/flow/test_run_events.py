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
from holdfast.testing.engine_harness import Dispatcher

VERSIONS = count(1)


async def told(dispatcher, run, after=START):
    """Everything that is told of a run that is over."""
    return [event async for event in run_events(dispatcher.engine, int(run), after)]


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


async def test_a_run_tells_each_step_of_its_nodes(dispatcher):
    run = await dispatcher.runs.start(a_flow("a>b"))
    await finish(dispatcher)
    assert kinds(await told(dispatcher, run)) == [
        ("execution.started", None), ("task.queued", "a"), ("task.started", "a"), ("task.completed", "a"),
        ("task.queued", "b"), ("task.started", "b"), ("task.completed", "b"), ("execution.completed", None),
    ]  # fmt: skip


async def test_pausing_resuming_and_canceling_tell_who_and_why(dispatcher):
    run = await dispatcher.runs.start(a_flow("a>b"))
    await dispatcher.runs.pause(run, actor="ada", reason="look")
    await dispatcher.runs.resume(run, actor="bob", reason="fine")
    await dispatcher.runs.cancel(run, actor="ada", reason="wrong day")
    said = {event.kind: event.detail for event in await told(dispatcher, run) if event.detail}
    assert said == {
        "execution.paused": {"actor": "ada", "reason": "look"},
        "execution.resumed": {"actor": "bob", "reason": "fine"},
        "execution.canceling": {"actor": "ada", "reason": "wrong day"},
    }


@pytest.mark.parametrize("make", [a_wait, a_map, a_parent, a_choice], ids=lambda make: make.__name__)
async def test_nodes_that_run_no_task_are_told_too(dispatcher, make):
    await dispatcher.runs.snapshot(a_sum(1))
    flow = make()
    run = await dispatcher.runs.start(flow)
    await dispatcher.runs.signal("payment", {"amount": 5})
    await finish(dispatcher, outputs={0: {"n": 0, "v": 1, "all": [1, 2]}, 1: {"v": 1}})
    events = await told(dispatcher, run)
    assert fold(events, flow) == ("completed", await dispatcher.runs.nodes(run))
    bare = flow.nodes[1 if make in (a_map, a_choice) else 0].name
    seen = [event.kind for event in events if event.node == bare and event.item is None]
    assert seen == (["task.skipped"] if make is a_choice else ["task.started", "task.completed"])


async def test_items_are_told_with_their_numbers_and_other_runs_are_not(dispatcher):
    run, other = await dispatcher.runs.start(a_map()), await dispatcher.runs.start(a_flow("a>b"))
    await finish(dispatcher, outputs={0: {"all": [1, 2]}})
    events = await told(dispatcher, run)
    items = {(event.node, event.item, event.kind) for event in events if event.item is not None}
    assert items == {("double", item, f"task.{kind}") for item in (0, 1) for kind in ("started", "completed")}
    assert {event.node for event in await told(dispatcher, other)} == {None, "a", "b"}


async def test_a_canceled_wait_and_a_rejected_one_are_told(dispatcher):
    for end, kind in (("cancel", "task.canceled"), ("expire", "task.failed")):
        flow = replace(a_wait(timeout_seconds=60.0), version=next(VERSIONS))
        run = await dispatcher.runs.start(flow)
        if end == "cancel":
            await dispatcher.runs.cancel(run)
        else:
            await dispatcher.engine.database.fetch("update holdfast.node set deadline = holdfast.instant()")
            await dispatcher.runs.repair_once()
        events = await told(dispatcher, run)
        assert (kind, "paid") in kinds(events)
        assert fold(events, flow)[1] == await dispatcher.runs.nodes(run)


async def test_a_stream_resumed_at_any_event_loses_and_repeats_nothing(dispatcher):
    run = await dispatcher.runs.start(a_diamond())
    await finish(dispatcher, fail=[1])
    await dispatcher.runs.retry(run)
    await finish(dispatcher)
    events = await told(dispatcher, run)
    assert len({event.cursor for event in events}) == len(events)
    for number, event in enumerate(events):
        assert await told(dispatcher, run, event.cursor) == events[number + 1 :]


async def test_a_stream_read_in_small_pages_is_the_same(dispatcher):
    run = await dispatcher.runs.start(a_diamond())
    for _ in range(5):
        await a.a_completed_task(dispatcher)
    await finish(dispatcher)
    whole, cursor, found, tail = await told(dispatcher, run), START, [], ""
    while True:
        page = await run_events_after(dispatcher.engine.database, 1, int(run), cursor, ended_by=tail, limit=1)
        found += page.events
        cursor, tail = page.cursor, page.tail
        if page.is_end:
            break
    assert [event.cursor for event in found] == [event.cursor for event in whole]


async def test_a_stream_follows_a_run_until_it_ends(dispatcher):
    run = await dispatcher.runs.start(a_flow("a>b"))
    following = asyncio.ensure_future(told(dispatcher, run))
    await step(dispatcher)
    assert not following.done()
    await step(dispatcher)
    assert kinds(await following)[-1] == ("execution.completed", None)


async def test_a_stream_does_not_end_before_what_an_open_transaction_may_still_tell(dispatcher):
    run = await dispatcher.runs.start(a_flow("a>b"))
    async with dispatcher.engine.database.transaction() as session:
        await session.fetch("select pg_current_xact_id()")
        await finish(dispatcher)
        page = await run_events_after(dispatcher.engine.database, 1, int(run))
        assert not page.is_end
        again = await run_events_after(dispatcher.engine.database, 1, int(run), page.cursor, ended_by=page.tail)
        assert not again.is_end
    assert kinds(await told(dispatcher, run, again.cursor))[-1] == ("execution.completed", None)


async def test_after_the_last_event_the_stream_of_an_ended_run_ends_at_once(dispatcher):
    run = await dispatcher.runs.start(a_flow("a>b"))
    await finish(dispatcher)
    last = (await told(dispatcher, run))[-1]
    assert await told(dispatcher, run, last.cursor) == []


async def test_unknown_runs_and_cursors_are_refused(dispatcher):
    run = await dispatcher.runs.start(a_flow("a>b"))
    with pytest.raises(NotFound):
        await told(dispatcher, "77")
    for text in ("", "1", "x:1", "1:2:3:4", "-1:0", "1:²"):
        with pytest.raises(Invalid):
            await told(dispatcher, run, text)
    assert cursor_of("7:8:9") == ("7", 8, 9)
    await finish(dispatcher)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(stories())
def test_folding_its_events_gives_the_states_of_any_run(on_engine, story):
    async def play(engine) -> None:
        flow, acts, limit, retries = story
        dispatcher, held = Dispatcher(engine), []
        dispatcher.runs.policy = replace(
            dispatcher.runs.policy, max_retries=int(retries), base_backoff_secs=0.0, jitter_factor=0.0
        )
        flow = replace(flow, version=next(VERSIONS))
        run = await dispatcher.runs.start(flow, max_active=limit)
        for what in acts:
            await act(dispatcher, run, what, held)
        if await dispatcher.runs.state(run) == "open":
            await act(dispatcher, run, "cancel", held)
        for lease in held:
            await dispatcher.settle(lease, Completed(b"1"))
        state = await dispatcher.runs.state(run)
        assert fold(await told(dispatcher, run), flow) == (state, await dispatcher.runs.nodes(run))

    on_engine(play)
