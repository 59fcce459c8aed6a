"""Every position of a node and every state of a run has a true sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.flows import a_flow
from tests.core.test_explain import AT, a_failure, a_running_task, a_task, ago

from holdfast.core.explain.evidence import Position, RunPlace
from holdfast.core.explain.node import explain_node
from holdfast.core.explain.node_evidence import (
    CauseFacts,
    ChildFacts,
    ItemsFacts,
    NodeEvidence,
    NodePosition,
    RunFacts,
    RunRestrictions,
    UpstreamFacts,
    WaitFacts,
)
from holdfast.core.explain.phrases import and_more
from holdfast.core.explain.run import explain_run
from holdfast.core.explain.task import explain
from holdfast.core.flows.cause import cause_of
from holdfast.core.flows.condition import Condition, Operator, describe
from holdfast.core.flows.nodes import TriggerRule
from holdfast.core.flows.plan import Plan
from holdfast.core.flows.run_state import RunState

PLACE = RunPlace(run_id="70", flow="shop.nightly", version=3, node="join")
BROKEN = CauseFacts(node="render", state="failed", task_id="72", failure=a_failure(message="disk full"))


def ups(**states):
    return tuple(UpstreamFacts(node=node, state=state) for node, state in states.items())


def a_node(position=NodePosition.BLOCKED, **fields):
    return NodeEvidence(task_id="71", place=PLACE, position=position, at=AT, **fields)


NODES = [
    (a_node(upstreams=ups(a="running", b="retrying", c="completed")), "waiting_on", "blocked",
     "Blocked: waits for 2 of 3 upstreams: a (running), b (retrying)."),
    (a_node(upstreams=ups(a="blocked"), rule=TriggerRule.ALL_DONE), "waiting_on", "blocked",
     "Blocked: waits for 1 of 1 upstream: a (blocked), whatever their outcome."),
    (a_node(upstreams=ups(a="queued", b="failed"), rule=TriggerRule.ONE_SUCCESS), "waiting_on", "blocked",
     "Blocked: waits for 1 of 2 upstreams: a (queued), and starts after the first that completes."),
    (a_node(upstreams=ups(**{f"n{number}": "queued" for number in range(9)})), "waiting_on", "blocked",
     "Blocked: waits for 9 of 9 upstreams: "
     "n0 (queued), n1 (queued), n2 (queued), n3 (queued), n4 (queued) and 4 more."),
    (a_node(NodePosition.HELD, hold=RunRestrictions(paused_at=ago(60), paused_by="ada", paused_reason="look first")),
     "run_paused", "blocked", "Held back: ada paused run 70 1m 00s ago: look first."),
    (a_node(NodePosition.HELD, hold=RunRestrictions(paused_at=ago(60), paused_by="ada")),
     "run_paused", "blocked", "Held back: ada paused run 70 1m 00s ago without giving a reason."),
    (a_node(NodePosition.HELD, hold=RunRestrictions(max_active=2, active=2)), "run_limit_reached", "blocked",
     "Held back: run 70 is at its limit of 2 active nodes, 2 are."),
    (a_node(NodePosition.HELD, hold=RunRestrictions(max_active=2, active=1)), "ready", "blocked",
     "Ready: run 70 releases it next."),
    (a_node(NodePosition.ITEMS, items=ItemsFacts(total=100, pending=61, failed=2, canceled=0)), "items", "running",
     "Running as items: 37 of 100 done, 2 failed, 61 to go."),
    (a_node(NodePosition.ITEMS, items=ItemsFacts(total=3, pending=1, failed=0, canceled=1, concurrency=2)),
     "items", "running", "Running as items: 1 of 3 done, 1 canceled, 1 to go, at most 2 at once."),
    (a_node(NodePosition.CHILD, child=ChildFacts(
        run_id="90", flow="shop.sum", state=RunState.RUNNING, nodes=5, pending=2)), "child_run", "running",
     "Runs shop.sum as run 90, which is running: 3 of 5 nodes ended."),
    (a_node(NodePosition.WAIT, wait=WaitFacts(name="payment", key="payment:o7", deadline=ago(-90))),
     "waiting_for_event", "running",
     "Waits for the event payment (key payment:o7), for 1m 30s more, until 2026-11-15 12:01:30 UTC."),
    (a_node(NodePosition.WAIT, wait=WaitFacts(name="payment", key="payment")), "waiting_for_event", "running",
     "Waits for the event payment, without a deadline."),
    (a_node(NodePosition.WAIT, wait=WaitFacts(name="ok", key="approval:70:join", is_approval=True, deadline=ago(1))),
     "waiting_for_approval", "running", "Waits for an approval, and its deadline has passed."),
    (a_node(NodePosition.COMPLETED, items=ItemsFacts(total=2, pending=0, failed=0, canceled=0)), "completed",
     "completed", "Completed as 2 items."),
    (a_node(NodePosition.COMPLETED, wait=WaitFacts(name="payment", key="payment")), "completed", "completed",
     "Completed: the event payment arrived."),
    (a_node(NodePosition.COMPLETED, wait=WaitFacts(name="ok", key="k", is_approval=True)), "completed", "completed",
     "Approved."),
    (a_node(NodePosition.COMPLETED, child=ChildFacts(
        run_id="90", flow="shop.sum", state=RunState.COMPLETED, nodes=5, pending=0)), "completed", "completed",
     "Completed by run 90 of shop.sum."),
    (a_node(NodePosition.FAILED, items=ItemsFacts(total=9, pending=0, failed=2, canceled=0), failure=a_failure()),
     "non_retryable", "failed",
     "Failed for good: 2 of 9 items failed, the last one: ConnectionError: connection refused."),
    (a_node(NodePosition.FAILED, failure=a_failure(type="", code="approval_rejected", message="ada rejected join.")),
     "non_retryable", "failed", "Failed for good: approval_rejected: ada rejected join."),
    (a_node(NodePosition.FAILED), "non_retryable", "failed",
     "Failed for good; its attempts are no longer on record."),
    (a_node(NodePosition.CANCELED,
            hold=RunRestrictions(canceled_at=ago(5), canceled_by="ada", cancel_reason="wrong day.")),
     "canceled", "canceled", "Canceled with its run by ada: wrong day."),
    (a_node(NodePosition.SKIPPED, condition="count.n > 3", condition_value="2", upstreams=ups(count="completed")),
     "skipped", "skipped", "Skipped: its condition does not hold: count.n > 3; it was 2."),
    (a_node(NodePosition.SKIPPED, condition="count.n > 3", upstreams=ups(a="skipped", b="skipped")),
     "skipped", "skipped", "Skipped because a, b were skipped."),
    (a_node(NodePosition.SKIPPED, condition="count.n > 3", rule=TriggerRule.ALL_DONE, upstreams=ups(a="skipped")),
     "skipped", "skipped", "Skipped: its condition does not hold: count.n > 3."),
    (a_node(NodePosition.SKIPPED, wait=WaitFacts(name="payment", key="payment")), "skipped", "skipped",
     "Skipped: payment got no answer in time."),
    (a_node(NodePosition.UPSTREAM_FAILED, cause=BROKEN), "upstream_failed", "upstream_failed",
     "Did not run: render failed: ConnectionError: disk full."),
    (a_node(NodePosition.UPSTREAM_FAILED, cause=replace(BROKEN, state="canceled")), "upstream_failed",
     "upstream_failed", "Did not run: render was canceled."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "code", "state", "headline"), NODES, ids=[f"{n}-{c[1]}" for n, c in enumerate(NODES)]
)
def test_a_node_is_explained(facts, code, state, headline):
    found = explain_node(facts)
    assert (found.headline, found.code, found.state) == (headline, code, state)
    assert "node join of run 70 (shop.nightly version 3)" in found.evidence


def test_every_position_of_a_node_is_tried():
    assert {facts.position for facts, *_ in NODES} == set(NodePosition)


def a_run(state, **fields):
    whole = {"nodes": 9, "created_at": ago(41), "counts": (("blocked", 3), ("running", 2), ("completed", 4))}
    return RunFacts(run_id="70", flow="shop.nightly", version=3, state=state, at=AT, **{**whole, **fields})


NAMES = (("running", ("score", "render")), ("blocked", ("mail",)))
RUNS = [
    (a_run(RunState.QUEUED, counts=(("queued", 1), ("blocked", 8))), "queued",
     "Queued: none of its 9 nodes has begun."),
    (a_run(RunState.RUNNING, names=NAMES), "running",
     "Running for 41.0 s: 4 of 9 nodes ended, 2 running (score, render)."),
    (a_run(RunState.RUNNING, counts=(("blocked", 9),), held=2), "running",
     "Running for 41.0 s: 0 of 9 nodes ended, 2 nodes held back."),
    (a_run(RunState.RUNNING, names=NAMES, hold=RunRestrictions(canceled_at=ago(2), canceled_by="ada")),
     "cancel_requested", "Being canceled by ada, without a reason; it ends when what is under way stops: "
     "2 running (score, render)."),
    (a_run(RunState.PAUSED, hold=RunRestrictions(paused_at=ago(60), paused_by="ada", paused_reason="look first")),
     "run_paused", "Paused: ada paused run 70 1m 00s ago: look first."),
    (a_run(RunState.BLOCKED, cause=BROKEN, names=NAMES), "failure",
     "Blocked by a failure: render failed: ConnectionError: disk full; "
     "still under way: 2 running (score, render)."),
    (a_run(RunState.BLOCKED, cause=BROKEN, counts=(("blocked", 8), ("failed", 1))), "failure",
     "Blocked by a failure: render failed: ConnectionError: disk full; nothing else is under way."),
    (a_run(RunState.COMPLETED, ended_at=ago(1), counts=(("completed", 8), ("skipped", 1))), "completed",
     "Completed 1.0 s ago in 40.0 s: 8 completed, 1 skipped."),
    (a_run(RunState.FAILED, ended_at=ago(1), cause=BROKEN), "failed",
     "Failed 1.0 s ago after 40.0 s: render failed: ConnectionError: disk full."),
    (a_run(RunState.CANCELED, ended_at=ago(1), hold=RunRestrictions(canceled_by="ada", cancel_reason="wrong day")),
     "canceled", "Canceled 1.0 s ago by ada: wrong day."),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "code", "headline"), RUNS, ids=[f"{n}-{c[0].state}" for n, c in enumerate(RUNS)])
def test_a_run_is_explained(facts, code, headline):
    found = explain_run(facts)
    assert (found.headline, found.code, found.state) == (headline, code, facts.state)


def test_every_state_of_a_run_is_tried():
    assert {facts.state for facts, *_ in RUNS} == set(RunState)


def test_a_run_tells_what_it_descends_from_and_what_its_front_waits_for():
    facts = a_run(RunState.RUNNING, generation=3, front="mail: Waiting for a worker.", parent="p", original="o", held=1)
    assert explain_run(facts).evidence == (
        "shop.nightly version 3, 3 blocked, 2 running, 4 completed",
        "1 node held back", "mail: Waiting for a worker.", "run again 2 times", "p", "o",
    )  # fmt: skip


def test_each_upstream_of_a_blocked_node_is_a_check_and_many_are_summed_up():
    facts = a_node(upstreams=ups(done="completed", late="running"), hold=RunRestrictions(max_active=2, active=2))
    assert [(check.ok, check.text) for check in explain_node(facts).checks] == [
        (False, "late is running"), (True, "done is completed"), (True, "its run is not paused"),
        (False, "its run has room (2/2 nodes active)"),
    ]  # fmt: skip
    many = a_node(upstreams=ups(**{f"n{number}": "running" for number in range(40)}))
    assert explain_node(many).checks[12].text == "and 28 more upstreams"


def test_a_task_of_a_run_says_where_it_belongs_and_is_run_again_with_it():
    running = explain(a_running_task(place=PLACE))
    assert running.evidence[-1] == "node join of run 70 (shop.nightly version 3)"
    failed = explain(a_task(Position.FAILED, attempt=1, failure=a_failure(), place=replace(PLACE, item=4)))
    assert failed.evidence[-1].startswith("item 4 of node join of run 70")
    assert failed.moves[-1] == 'holdfast run retry 70 --reason "…"'
    canceled = explain(a_task(Position.CANCELED, ended_at=ago(1), place=PLACE))
    assert canceled.moves == ("holdfast run start --clone 70",)
    assert explain(a_task(place=PLACE)).evidence[0].startswith("ready since")


def test_the_nearest_failure_is_to_blame():
    plan = Plan.of(a_flow("far>near near>x gone>x x>y"))
    number = plan.number
    states = ["completed"] * len(plan.nodes)
    for name, state in {"far": "failed", "near": "upstream_failed", "gone": "canceled", "x": "upstream_failed"}.items():
        states[number[name]] = state
    assert cause_of(plan, states, number["y"]) == number["far"]
    states[number["far"]] = "completed"
    assert cause_of(plan, states, number["y"]) == number["gone"]
    states[number["gone"]] = "completed"
    assert cause_of(plan, states, number["y"]) is None


def test_conditions_and_lists_of_names_read_well():
    assert describe(Condition(upstream="a")) == "a is true"
    assert describe(Condition(upstream="a", output_key="n", operator=Operator.IN, value=[1, "x"])) == (
        'a.n is one of [1, "x"]'
    )
    assert {describe(Condition(upstream="a", operator=one, value=1)) for one in Operator}
    assert (and_more(["a", "b"], 5), and_more(["a", "b"], 1), and_more(["a"], 5, total=3)) == (
        "a, b", "a and 1 more", "a and 2 more",
    )  # fmt: skip
