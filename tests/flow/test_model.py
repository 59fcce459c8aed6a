"""Random graphs, outcomes, orders, crashes and pauses against a model of the semantics in thirty lines.

The model knows nothing of counters, rows or locks: it looks at every upstream of every node until nothing changes. Two
report on nodes of a run at once, and their connections break at any statement, they die, or their leases run out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.core.flows import INNER, a_flow, flows
from tests.core.verdicts import RunCounts, verdict
from tests.flow.callers import FATES, Fates, Stage

from holdfast.codec import json_codec
from holdfast.core.flows.nodes import NodeKind, TriggerRule
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.core.tasks.states import TaskState
from holdfast.testing.engine_harness import EngineHarness
from holdfast.testing.factories import a_failure

FAILED = {"failed", "upstream_failed", "canceled"}
VERSIONS = count(1)
TASKS = {NodeKind.TASK: 1, NodeKind.MAP: 2, NodeKind.FLOW: 1, NodeKind.WAIT: 0}
"""How many tasks a node is."""
LEFT_BEHIND = """
truncate holdfast.live, holdfast.ended, holdfast.attempt, holdfast.failure, holdfast.event, holdfast.dead_letter,
  holdfast.node, holdfast.run, holdfast.signal cascade
"""
"""By an example that failed: the next one must not find it."""


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
    flow = draw(flows(nodes_max=9, is_special=draw(st.booleans())))
    ends = draw(st.lists(st.sampled_from(["completed", "completed", "failed"]), min_size=9, max_size=9))
    outcomes = {node.name: "skipped" if node.condition else ends[number] for number, node in enumerate(flow.nodes)}
    trouble = draw(st.sampled_from([0, 0.3, 0.6]))
    limit = draw(st.sampled_from([None, None, 1, 2]))
    pauses = draw(st.sampled_from([0, 0, 0.3]))
    batch, random = draw(st.sampled_from([1, 3, 4])), draw(st.randoms(use_true_random=True))
    return flow, outcomes, trouble, limit, pauses, batch, random


def a_wide_history(seed, *, trouble):
    """Much at once that meets again: whatever may befall reports befalls some in a few of these."""
    flow = a_flow("a>x b>x c>x d>x a>y b>y c>z d>z", alone=("e", "f"), x=TriggerRule.ALL_DONE)
    outcomes = {node.name: "failed" if node.name == "d" else "completed" for node in flow.nodes}
    return flow, outcomes, trouble, None, 0, 4, Random(seed)


class Play:
    """One run in the hands of a test: claims in batches, ends in any order and two at once, trouble and pauses."""

    def __init__(self, harness, flow, fates, pauses, batch, random):
        self.harness, self.flow, self.fates, self.batch, self.random = harness, flow, fates, batch, random
        self.database, self.pauses, self.is_repeated = harness.engine.database, pauses, False

    async def start(self, limit):
        await self.harness.runs.snapshot(INNER)
        self.run = await self.harness.runs.start(self.flow, max_active=limit)

    async def to_its_end(self, outcomes):
        """Answers how many tasks each node ran: itself, its items, or the node of the flow it runs."""
        names = {}
        held = []
        while (
            held
            or (held := await self.harness.claim(self.batch))
            or await self.fates.made_good()
            or await self.answered(outcomes)
            or await self.goes_on()
        ):
            if not held:
                continue
            await self.is_paused()
            reports = []
            for _ in range(min(len(held), self.random.choice((1, 2, 2)))):
                lease = held.pop(self.random.randrange(len(held)))
                node = self.flow.nodes[await self.number(lease)]
                names[lease.task_id, lease.attempt] = node.name
                reports.append((lease, self.outcome(node, lease, outcomes)))
            await self.fates.meet(reports, held)
            if self.random.random() < 0.5:
                held += await self.harness.claim(self.batch)
        return await self.fates.ran(names)

    def outcome(self, node, lease, outcomes):
        is_first = node.kind is NodeKind.MAP and json_codec.decode(lease.claimed.input)["x"] == 1
        is_well = is_first or outcomes[node.name] == "completed"
        return Completed(b"1") if is_well else Failed(a_failure())

    async def is_paused(self):
        """Somebody pauses the run now and then."""
        if self.random.random() < self.pauses and not await self.stands("paused_at is not null"):
            await self.harness.runs.pause(self.run)

    async def goes_on(self):
        """A paused run of which nothing is under way goes on: somebody resumes it, or runs again what failed in it."""
        if not await self.stands("paused_at is not null and state = 'o'"):
            return False
        if self.random.random() < 0.5 and "failed" in (await self.harness.runs.nodes(self.run)).values():
            self.is_repeated = True
            await self.harness.runs.retry(self.run)
            await self.harness.runs.repair_once()
        else:
            await self.harness.runs.resume(self.run)
        assert not await self.stands("paused_at is not null")
        return True

    async def stands(self, how):
        return await self.database.fetchval(f"select {how} from holdfast.run where run_id = $1", int(self.run))

    async def number(self, lease):
        """Which node a task stands for."""
        if str(lease.claimed.run_id) == self.run:
            return lease.claimed.node_no
        return await self.database.fetchval(
            "select parent_node from holdfast.run where run_id = $1", lease.claimed.run_id
        )

    async def answered(self, outcomes):
        """End what waits for an event, with it or at its deadline; False if nothing waits."""
        waiting = "select node_no from holdfast.node where run_id = $1 and state = 'w' order by 1"
        numbers = [row[0] for row in await self.database.fetch(waiting, int(self.run))]
        late = [number for number in numbers if outcomes[self.flow.nodes[number].name] != "completed"]
        for number in numbers:
            if number not in late:
                await self.harness.runs.signal(f"event.{self.flow.nodes[number].name}", 1, run_id=self.run)
        if late:
            # Not of those that began to wait because of an event just now.
            overdue = "update holdfast.node set deadline = holdfast.instant() where run_id = $1 and node_no = any($2)"
            await self.database.fetch(overdue, int(self.run), late)
            await self.harness.runs.repair_once()
        return bool(numbers)


@pytest.fixture
def on_stage(on_engine):
    """Play on one stage, and at the end show what befell those who played."""
    stage = Stage()

    async def play(engine, history):
        await check(await stage.open(engine), *history)

    yield lambda history: on_engine(lambda engine: play(engine, history)), stage.tally
    on_engine(lambda _: stage.close())


def test_a_run_ends_as_the_model_says_and_every_released_node_ran_once(on_stage):
    on, befell = on_stage

    @settings(
        max_examples=30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        # Two at once do not take the same turns again: what failed is told as it was, not shrunk.
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        print_blob=True,
    )
    @given(histories())
    def play(history):
        on(history)

    play()
    for seed in range(4):
        on(a_wide_history(seed, trouble=0))
        on(a_wide_history(seed, trouble=0.5))
    for what in ("at once", "rolled back", "answer lost", "refused", *FATES):
        assert befell[what], befell


async def check(stage, flow, outcomes, trouble, limit, pauses, batch, random):
    engine = stage.engine
    if await engine.database.fetchval("select count(*) from holdfast.live"):
        await engine.database.fetch(LEFT_BEHIND)
    harness = EngineHarness(engine)
    harness.runs.policy = RetryPolicy(max_retries=0, max_losses=3)
    fates = Fates(stage, harness, trouble, random)
    play = Play(harness, replace(flow, version=next(VERSIONS)), fates, pauses, batch, random)
    await play.start(limit)
    ran = await play.to_its_end(outcomes)
    expected = settled(flow, outcomes)
    assert await harness.runs.nodes(play.run) == expected
    over = [node for node in flow.nodes if expected[node.name] in ("completed", "failed")]
    assert play.is_repeated or ran == Counter({node.name: TASKS[node.kind] for node in over})
    counts = RunCounts.of(Counter(TaskState(state) for state in expected.values()))
    assert await harness.runs.state(play.run) == verdict(counts)
    play.pauses = 0
    if "failed" in expected.values():
        await fails_again(play, outcomes, expected)
        await is_mended(play, outcomes, expected)


async def fails_again(play, outcomes, before):
    """Run again what failed, and let it fail again: everything stands where it stood."""
    await play.harness.runs.retry(play.run)
    await play.to_its_end(outcomes)
    assert await play.harness.runs.nodes(play.run) == before
    assert await play.harness.runs.state(play.run) == "failed"


async def is_mended(play, outcomes, before):
    """Run it again with success: what is downstream of a failure ends as the model says now."""
    well = {name: "skipped" if end == "skipped" else "completed" for name, end in outcomes.items()}
    reset = set(await play.harness.runs.retry(play.run))
    failed = {name for name, state in before.items() if state == "failed"}
    assert failed <= reset
    ran = await play.to_its_end(well)
    after = await play.harness.runs.nodes(play.run)
    # Of a list that failed only the item that did so runs again, unless the list may be another.
    upstream = play.flow.graph().upstream
    same = {name for name in failed if reset.isdisjoint(upstream[name])}
    tasks = {node.name: TASKS[node.kind] for node in play.flow.nodes if after[node.name] == "completed"}
    assert ran == Counter({name: min(1, tasks[name]) if name in same else tasks[name] for name in reset & set(tasks)})
    assert after == settled(play.flow, well) | {name: state for name, state in before.items() if name not in reset}
    assert await play.harness.runs.state(play.run) == "completed"
