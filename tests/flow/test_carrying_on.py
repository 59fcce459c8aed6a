"""Carrying a run on: what one exchange released and took itself needs no question, and no bell."""

from __future__ import annotations

import pytest
from tests.core.flows import a_node, an_edge

from holdfast.codec import json_codec
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.leases import report_of
from holdfast.engine.lifecycle.runs import inputs
from holdfast.engine.lifecycle.tasks import exchange as exchanges
from holdfast.engine.lifecycle.tasks.claim import Claimer
from holdfast.engine.lifecycle.tasks.exchange import exchange
from holdfast.engine.notifications import NO_NOTIFICATIONS, Notifications
from holdfast.testing.factories import a_failure


def a_flow_of(edges: str) -> FlowDefinition:
    """Every node takes the `x` of each upstream, under the upstream's name."""
    ends = edges.split()
    names = dict.fromkeys(name for pair in ends for name in pair.split(">"))
    bound = tuple(an_edge(pair, f"x>{pair[0]}") for pair in ends)
    return FlowDefinition(name="shop.nightly", nodes=tuple(map(a_node, names)), edges=bound).validated()


@pytest.fixture
async def one_exchange(engine, harness):
    """Report what these leases returned, and claim; as a worker does in one go."""

    async def run(reports, want, **options):
        claimer = await harness._claimer("first")
        async with engine.database.session() as session:
            return await exchange(session, engine.catalog, claimer, reports, want, now=0.0, **options)

    return run


def returning(claimed, value):
    return report_of(claimed, Completed(json_codec.encode(value, bytes_max=1000, what="output")))


async def test_the_next_node_of_a_chain_takes_what_was_just_returned(harness, one_exchange, monkeypatch):
    await harness.runs.start(a_flow_of("a>b b>c"))
    (first,) = await harness.claim(1)
    monkeypatch.delattr(inputs, "read_runs")
    done = await one_exchange([returning(first.claimed, {"x": 7})], 10)
    assert [json_codec.decode(one.input) for one in done.claimed] == [{"a": 7}]


async def test_what_another_worker_returned_is_read(harness, one_exchange):
    await harness.runs.start(a_flow_of("a>b a>c b>d c>d"))
    (start,) = await harness.claim(1)
    done = await one_exchange([returning(start.claimed, {"x": 1})], 1)
    (left,) = done.claimed
    (right,) = await harness.claim(1, worker="second")
    await harness.settle(right, Completed(b'{"x": 2}'))
    done = await one_exchange([returning(left, {"x": 3})], 10)
    assert [json_codec.decode(one.input) for one in done.claimed] == [{"b": 3, "c": 2}]


async def test_a_run_met_in_an_earlier_generation_reads_the_newer_outputs(harness, one_exchange):
    run = await harness.runs.start(a_flow_of("a>b b>c"))
    (first,) = await harness.claim(1)
    done = await one_exchange([returning(first.claimed, {"x": 1})], 10)
    await one_exchange([report_of(done.claimed[0], Failed(a_failure()))], 0)
    await harness.runs.retry(run, only="a")
    (first,) = await harness.claim(1)
    await harness.settle(first, Completed(b'{"x": 2}'))
    (second,) = await harness.claim(1)
    assert json_codec.decode(second.claimed.input) == {"a": 2}


async def test_what_the_fence_refused_is_given_to_nobody(harness, one_exchange, clock):
    await harness.runs.start(a_flow_of("a>b b>c"))
    (late,) = await harness.claim(1)
    await clock.advance(seconds=60)
    await harness.reap_once()
    (first,) = await harness.claim(1, worker="second")
    await harness.settle(first, Completed(b'{"x": 1}'))
    done = await one_exchange([returning(late.claimed, {"x": 9})], 10)
    assert [json_codec.decode(one.input) for one in done.claimed] == [{"a": 1}]


async def test_a_worker_that_takes_all_it_released_wakes_nobody(harness, one_exchange):
    await harness.runs.start(a_flow_of("a>b b>c"))
    (first,) = await harness.claim(1)
    done = await one_exchange([returning(first.claimed, {"x": 1})], 10)
    assert done.settled.notifications.lanes == set()


async def test_a_worker_that_leaves_some_of_what_it_released_wakes_others(harness, one_exchange):
    await harness.runs.start(a_flow_of("a>b a>c"))
    (first,) = await harness.claim(1)
    done = await one_exchange([returning(first.claimed, {"x": 1})], 1)
    assert len(done.claimed) == 1 and len(done.settled.notifications.lanes) == 1


async def test_others_have_what_was_released_before_this_worker_took_its_share(harness, one_exchange, monkeypatch):
    await harness.runs.start(a_flow_of("a>b a>c a>d"))
    (first,) = await harness.claim(1)
    claim, others = Claimer.claim, []

    async def claim_after_others(*given, **options):
        monkeypatch.setattr(Claimer, "claim", claim)
        others.extend(await harness.claim(2, worker="second"))
        return await claim(*given, **options)

    monkeypatch.setattr(Claimer, "claim", claim_after_others)
    done = await one_exchange([returning(first.claimed, {"x": 1})], 2)
    assert (len(others), len(done.claimed)) == (2, 1)


async def test_what_was_released_is_told_before_inputs_are_read(harness, one_exchange, monkeypatch):
    await harness.runs.start(a_flow_of("a>b a>c"))
    (first,) = await harness.claim(1)
    happened = []
    read = exchanges._ready

    async def ready(*given):
        happened.append("read")
        return await read(*given)

    monkeypatch.setattr(exchanges, "_ready", ready)
    done = await one_exchange([returning(first.claimed, {"x": 1})], 1, tell=happened.append)
    assert happened == [done.settled.notifications, "read"]


async def test_who_released_nothing_for_others_tells_nothing(harness, one_exchange):
    await harness.runs.start(a_flow_of("a>b b>c"))
    (first,) = await harness.claim(1)
    told = []
    await one_exchange([returning(first.claimed, {"x": 1})], 10, tell=told.append)
    assert told == []


def test_lanes_of_which_more_came_than_was_counted_stay_in_the_news():
    counted = Notifications({1, 2}, [], [], counted={1: 1, 2: 2})
    assert counted.less([1, 2, 2]).lanes == set()
    assert counted.less([1, 2]).lanes == {2}
    assert counted.and_(Notifications({1}, [], [])).less([1, 1, 2, 2]).lanes == {1}
    assert counted.and_(counted).less([1, 2, 2, 2, 2]).lanes == {1}
    assert NO_NOTIFICATIONS.and_(Notifications({3}, [5], [6], waits={9})).less([3]) == Notifications(
        {3}, [5], [6], waits={9}
    )
