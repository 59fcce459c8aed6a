"""Random graphs, random outcomes, random orders and crashes against a model of the semantics in thirty lines.

The model knows nothing of counters, rows or locks: it looks at every upstream of every node until nothing changes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.flows import flows
from tests.core.verdicts import RunCounts, verdict

from holdfast.core.nodes import TriggerRule
from holdfast.core.outcome import Completed, Failed, Lost
from holdfast.core.retry import RetryPolicy
from holdfast.core.states import TaskState
from holdfast.testing.dispatcher import Dispatcher
from holdfast.testing.factories import a_failure

FAILED = {"failed", "upstream_failed", "canceled"}
VERSIONS = count(1)


def settled(flow, outcomes):
    """Where every node ends up, and how often it ran: the semantics without an engine."""
    states: dict[str, str] = {}
    upstream = flow.graph().upstream
    while True:
        before = dict(states)
        for node in flow.nodes:
            if node.name not in states and (decided := _decide(node.trigger_rule, upstream[node.name], states)):
                states[node.name] = outcomes[node.name] if decided == "run" else decided
        if states == before:
            return states


def _decide(rule, upstream, states):
    ends = [states.get(one) for one in upstream]
    is_over = all(ends)
    failed, skipped = any(end in FAILED for end in ends), "skipped" in ends
    if rule is TriggerRule.ALL_DONE:
        return "run" if is_over else None
    if rule is TriggerRule.ONE_SUCCESS and "completed" in ends:
        return "run"
    if rule is TriggerRule.ALL_SUCCESS and failed:
        return "upstream_failed"
    if not is_over:
        return None
    return "upstream_failed" if failed else "skipped" if skipped else "run"


@st.composite
def histories(draw):
    flow = draw(flows(nodes_max=9))
    ends = draw(st.lists(st.sampled_from(["completed", "completed", "failed"]), min_size=9, max_size=9))
    outcomes = {node.name: ends[number] for number, node in enumerate(flow.nodes)}
    losses = draw(st.sets(st.integers(0, 8), max_size=3))
    return flow, outcomes, losses, draw(st.integers(1, 3)), draw(st.randoms(use_true_random=False))


async def play(dispatcher, flow, outcomes, losses, batch, random):
    """Run a flow to its end: claims in batches, ends in any order, some leases lost on the way."""
    names = [node.name for node in flow.nodes]
    run = await dispatcher.runs.start(flow)
    ran: dict[str, int] = {}
    held = []
    while held or (held := await dispatcher.claim(batch)):
        lease = held.pop(random.randrange(len(held)))
        name = names[lease.claimed.node_no]
        if lease.claimed.node_no in losses and lease.attempt == 1:
            await dispatcher.settle(lease, Lost(a_failure()))
        else:
            ran[name] = ran.get(name, 0) + 1
            await dispatcher.settle(lease, Completed(b"1") if outcomes[name] == "completed" else Failed(a_failure()))
        if random.random() < 0.5:
            held += await dispatcher.claim(batch)
    return run, ran


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(histories())
def test_a_run_ends_as_the_model_says_and_every_released_node_ran_once(on_engine, history):
    on_engine(lambda engine: check(engine, *history))


async def check(engine, flow, outcomes, losses, batch, random):
    dispatcher = Dispatcher(engine)
    dispatcher.runs.policy = RetryPolicy(max_retries=0, max_losses=3)
    flow = replace(flow, version=next(VERSIONS))
    run, ran = await play(dispatcher, flow, outcomes, losses, batch, random)
    expected = settled(flow, outcomes)
    assert await dispatcher.runs.nodes(run) == expected
    assert ran == {name: 1 for name, state in expected.items() if state in ("completed", "failed")}
    counts = RunCounts.of(Counter(TaskState(state) for state in expected.values()))
    assert await dispatcher.runs.state(run) == verdict(counts)
    await redrive(dispatcher, run, flow, expected)


async def redrive(dispatcher, run, flow, before):
    """Run again what failed, with success this time: what is downstream of a failure ends as the model says now."""
    if "failed" not in before.values():
        return
    reset = set(await dispatcher.runs.retry(run))
    assert {name for name, state in before.items() if state == "failed"} <= reset
    ran = []
    names = [node.name for node in flow.nodes]
    while leases := await dispatcher.claim(3):
        for lease in leases:
            ran.append(names[lease.claimed.node_no])
            await dispatcher.settle(lease, Completed(b"1"))
    assert len(ran) == len(set(ran)) and set(ran) <= reset
    after = await dispatcher.runs.nodes(run)
    assert after == settled(flow, dict.fromkeys(names, "completed")) | {
        name: state for name, state in before.items() if name not in reset
    }
    assert await dispatcher.runs.state(run) == "completed"
