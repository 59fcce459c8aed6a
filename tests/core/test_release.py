"""Releasing by counters does what recomputing everything from scratch does, in any order of events."""

from __future__ import annotations

import random
from collections import Counter as Tally

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.flows import flows
from tests.core.verdicts import RunCounts, verdict

from holdfast.core.flows.nodes import TriggerRule
from holdfast.core.flows.redrive import redrive
from holdfast.core.flows.release import COUNTERS, RELEASE_STATES, Release, UpstreamCounts, release
from holdfast.core.flows.run_state import RunState
from holdfast.core.tasks.states import TERMINAL, TaskState, can_move

DONE, FAILED, SKIPPED, CANCELED, UPSTREAM_FAILED = (
    TaskState.COMPLETED,
    TaskState.FAILED,
    TaskState.SKIPPED,
    TaskState.CANCELED,
    TaskState.UPSTREAM_FAILED,
)
ALL, ANY_END, ONE = TriggerRule.ALL_SUCCESS, TriggerRule.ALL_DONE, TriggerRule.ONE_SUCCESS


@pytest.mark.parametrize(
    ("rule", "states", "expected"),
    [
        (ALL, [], Release.RUN),
        (ALL, [None], Release.WAIT),
        (ALL, [DONE, None], Release.WAIT),
        (ALL, [DONE, DONE], Release.RUN),
        (ALL, [FAILED, None], Release.UPSTREAM_FAILED),
        (ALL, [UPSTREAM_FAILED, DONE], Release.UPSTREAM_FAILED),
        (ALL, [CANCELED, DONE], Release.UPSTREAM_FAILED),
        (ALL, [SKIPPED, None], Release.WAIT),
        (ALL, [SKIPPED, DONE], Release.SKIP),
        (ALL, [SKIPPED, FAILED], Release.UPSTREAM_FAILED),
        (ANY_END, [], Release.RUN),
        (ANY_END, [FAILED, None], Release.WAIT),
        (ANY_END, [FAILED, SKIPPED, CANCELED], Release.RUN),
        (ONE, [], Release.RUN),
        (ONE, [DONE, None], Release.RUN),
        (ONE, [FAILED, None], Release.WAIT),
        (ONE, [FAILED, SKIPPED], Release.UPSTREAM_FAILED),
        (ONE, [CANCELED], Release.UPSTREAM_FAILED),
        (ONE, [SKIPPED, SKIPPED], Release.SKIP),
        (ONE, [SKIPPED, DONE], Release.RUN),
        (ONE, [TaskState.RUNNING, TaskState.BLOCKED], Release.WAIT),
    ],
)
def test_a_rule_decides_on_counters(rule, states, expected):
    assert release(rule, UpstreamCounts.of(states)) is expected


def test_every_decision_is_a_move_of_a_blocked_task():
    assert set(RELEASE_STATES) == set(Release)
    moves = {RELEASE_STATES[decision] for decision in Release if decision is not Release.WAIT}
    assert all(can_move(TaskState.BLOCKED, state) for state in moves)


def test_every_end_and_nothing_else_is_counted():
    assert set(COUNTERS) == TERMINAL


@given(st.sampled_from(TriggerRule), st.lists(st.sampled_from(sorted(TERMINAL)), min_size=1), st.randoms())
def test_the_order_of_ends_never_matters(rule, states, chance):
    def first_decision(order):
        counts = UpstreamCounts(pending=len(order))
        for state in order:
            counts = counts.after(state)
            if (decision := release(rule, counts)) is not Release.WAIT:
                return decision
        return Release.WAIT

    shuffled = chance.sample(states, len(states))
    assert first_decision(states) is first_decision(shuffled) is not Release.WAIT
    assert UpstreamCounts.of(states) == UpstreamCounts.of(shuffled)


def kept_from_running(rule, ends):
    """The reference: why a node whose upstreams have all ended does not run, or None if it does."""
    good = sum(end is DONE for end in ends)
    bad = sum(end in (FAILED, UPSTREAM_FAILED, CANCELED) for end in ends)
    skipped = len(ends) - good - bad
    if rule is TriggerRule.ALL_SUCCESS and (bad or skipped):
        return UPSTREAM_FAILED if bad else SKIPPED
    if rule is TriggerRule.ONE_SUCCESS and ends and not good:
        return UPSTREAM_FAILED if bad else SKIPPED
    return None


def expected_of(definition, would_be):
    """The reference model of a run: every node's end follows from its upstreams' ends alone; and which nodes ran."""
    graph, rules = definition.graph(), {node.name: node.trigger_rule for node in definition.nodes}
    ends, ran = {}, set()
    for name in graph.order:
        kept = kept_from_running(rules[name], [ends[one] for one in graph.upstream[name]])
        ends[name] = kept or would_be[name]
        ran |= set() if kept else {name}
    return ends, ran


class Simulation:
    """A run as the database drives it: per node a state and counters, one ended task at a time, in any order."""

    def __init__(self, definition, chance):
        self.graph, self.chance = definition.graph(), chance
        self.rules = {node.name: node.trigger_rule for node in definition.nodes}
        self.states = dict.fromkeys(self.graph.names, TaskState.BLOCKED)
        self.counts = {name: UpstreamCounts(pending=number) for name, number in self.graph.pending().items()}
        self.released = Tally()
        for name in self.graph.roots:
            self.decide(name)

    def decide(self, name):
        decision = release(self.rules[name], self.counts[name])
        if self.states[name] is TaskState.BLOCKED and decision is not Release.WAIT:
            self.move(name, RELEASE_STATES[decision])
            if decision is Release.RUN:
                self.released[name] += 1
            else:
                self.propagate(name)

    def move(self, name, state):
        assert can_move(self.states[name], state)
        self.states[name] = state

    def propagate(self, name):
        for one in self.graph.downstream[name]:
            if self.states[one] is TaskState.BLOCKED:
                self.counts[one] = self.counts[one].after(self.states[name])
                self.decide(one)

    def open(self):
        return [name for name, state in self.states.items() if state is TaskState.QUEUED]

    def settle_one(self, would_be):
        name = self.chance.choice(self.open())
        if would_be[name] is SKIPPED:
            # A condition that did not hold: decided at release, so the node never was queued.
            self.states[name] = SKIPPED
        else:
            if would_be[name] is not CANCELED:
                self.move(name, TaskState.RUNNING)
            self.move(name, would_be[name])
        self.propagate(name)

    def run(self, would_be):
        while self.open():
            assert verdict(self.run_counts()) is None
            self.settle_one(would_be)
        return self

    def run_counts(self):
        return RunCounts.of(Tally(self.states.values()))


@st.composite
def runs(draw):
    definition = draw(flows())
    ends = st.sampled_from([DONE, DONE, DONE, FAILED, SKIPPED, CANCELED])
    would_be = {node.name: draw(ends) for node in definition.nodes}
    return definition, would_be, random.Random(draw(st.integers(0, 2**32)))


@given(runs())
def test_counters_do_what_the_reference_does(run):
    definition, would_be, chance = run
    simulation = Simulation(definition, chance).run(would_be)
    expected, ran = expected_of(definition, would_be)
    assert simulation.states == expected
    assert simulation.released == Tally(ran)
    has_failed = FAILED in expected.values()
    assert verdict(simulation.run_counts()) is (RunState.FAILED if has_failed else RunState.COMPLETED)
    assert verdict(simulation.run_counts(), is_canceled=True) is RunState.CANCELED


@given(runs())
def test_a_redriven_run_ends_as_if_nothing_had_failed(run):
    definition, would_be, chance = run
    would_be = {name: DONE if end is CANCELED else end for name, end in would_be.items()}
    simulation = Simulation(definition, chance).run(would_be)
    healed = {name: DONE if end is FAILED else end for name, end in would_be.items()}
    apply(simulation, redrive(definition, simulation.states))
    simulation.run(healed)
    assert simulation.states == expected_of(definition, healed)[0]


@given(runs(), st.integers(0, 8))
def test_a_redrive_in_mid_run_leaves_no_node_waiting(run, steps):
    definition, would_be, chance = run
    simulation = Simulation(definition, chance)
    for _ in range(steps):
        if simulation.open():
            simulation.settle_one(would_be)
    healed = {name: DONE if end is FAILED else end for name, end in would_be.items()}
    apply(simulation, redrive(definition, simulation.states))
    simulation.run(healed)
    assert verdict(simulation.run_counts()) is RunState.COMPLETED


def apply(simulation, plan):
    """Do to a simulated run what a re-drive does to a stored one: reset all, then decide all."""
    for reset in plan.resets:
        simulation.states[reset.node] = TaskState.BLOCKED
        simulation.counts[reset.node] = reset.counts
    for reset in plan.resets:
        simulation.decide(reset.node)
