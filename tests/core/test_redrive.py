"""What a re-drive resets, and with which counters."""

from __future__ import annotations

import pytest
from tests.core.flows import a_diamond, a_flow

from holdfast.core.flows.nodes import TriggerRule
from holdfast.core.flows.redrive import redrive
from holdfast.core.flows.release import Release, UpstreamCounts
from holdfast.core.tasks.states import TaskState
from holdfast.errors import Conflict, NotFound


def states(**words):
    return {name: TaskState(word) for name, word in words.items()}


def reset_names(plan):
    return [reset.node for reset in plan.resets]


def counts_of(plan):
    return {reset.node: (reset.counts, reset.release) for reset in plan.resets}


def test_the_failed_node_and_its_descendants_start_anew_and_successes_stay():
    plan = redrive(a_diamond(), states(start="completed", left="failed", right="completed", end="upstream_failed"))
    assert plan.roots == ("left",)
    assert counts_of(plan) == {
        "left": (UpstreamCounts(succeeded=1), Release.RUN),
        "end": (UpstreamCounts(pending=1, succeeded=1), Release.WAIT),
    }


def test_a_completed_descendant_is_reset_too():
    flow = a_flow("a>b b>c", b=TriggerRule.ALL_DONE)
    assert reset_names(redrive(flow, states(a="failed", b="completed", c="completed"))) == ["a", "b", "c"]


def test_a_root_behind_another_may_get_another_input():
    flow = a_flow("a>b b>c d>c", b=TriggerRule.ALL_DONE, c=TriggerRule.ALL_DONE)
    plan = redrive(flow, states(a="failed", b="completed", c="failed", d="failed"))
    assert (plan.roots, plan.unmoved) == (("a", "d", "c"), {"a", "d"})
    assert redrive(flow, states(a="failed", b="completed", c="failed", d="failed"), only="c").unmoved == {"c"}


def test_without_a_failure_there_is_nothing_to_redrive():
    assert redrive(a_diamond(), states(start="completed", left="running", right="queued", end="blocked")).roots == ()
    retrying = redrive(a_flow("a>b"), states(a="failed", b="blocked"), retrying={"a"})
    assert retrying.resets == ()


def test_a_blocked_descendant_gets_its_counters_back():
    flow = a_flow("a>c b>c", c=TriggerRule.ALL_DONE)
    plan = redrive(flow, states(a="failed", b="running", c="blocked"))
    assert counts_of(plan)["c"] == (UpstreamCounts(pending=2), Release.WAIT)


@pytest.mark.parametrize("word", ["queued", "running", "canceled"])
def test_what_is_under_way_or_canceled_is_left_alone(word):
    flow = a_flow("a>b b>c", b=TriggerRule.ALL_DONE)
    assert reset_names(redrive(flow, states(a="failed", b=word, c="blocked"))) == ["a"]


def test_a_retry_that_waits_is_left_alone_and_counts_as_pending():
    flow = a_flow("a>c b>c", c=TriggerRule.ALL_DONE)
    plan = redrive(flow, states(a="failed", b="failed", c="blocked"), retrying={"b"})
    assert plan.roots == ("a",)
    assert counts_of(plan)["c"][0] == UpstreamCounts(pending=2)


def test_what_waits_behind_a_canceled_node_is_not_revived_in_vain():
    assert redrive(a_flow("a>b"), states(a="canceled", b="upstream_failed")).roots == ()


def test_a_node_whose_failed_upstream_left_the_definition_is_a_root():
    plan = redrive(a_flow("b>c"), states(gone="failed", b="upstream_failed", c="upstream_failed"))
    assert plan.roots == ("b",)
    assert reset_names(plan) == ["b", "c"]


@pytest.mark.parametrize("word", ["failed", "completed", "skipped"])
def test_one_node_is_retried_with_what_follows_it(word):
    flow = a_flow("a>b b>c d>c")
    plan = redrive(flow, states(a="completed", b=word, c="skipped", d="completed"), only="b")
    assert plan.roots == ("b",)
    assert counts_of(plan)["c"] == (UpstreamCounts(pending=1, succeeded=1), Release.WAIT)


@pytest.mark.parametrize(
    ("word", "retrying"), [("queued", ()), ("running", ()), ("blocked", ()), ("canceled", ()), ("failed", ("b",))]
)
def test_one_node_that_is_not_over_cannot_be_retried(word, retrying):
    with pytest.raises(Conflict, match="DAG_STATE_TRANSITION_NODE_NOT_RETRYABLE"):
        redrive(a_flow("a>b"), states(a="completed", b=word), retrying=retrying, only="b")


def test_one_node_behind_a_failure_cannot_be_retried_alone():
    with pytest.raises(Conflict, match="upstream_failed"):
        redrive(a_flow("a>b"), states(a="failed", b="upstream_failed"), only="b")


def test_an_unknown_node_is_not_found():
    with pytest.raises(NotFound, match="DAG_VALIDATION_NODE_NOT_FOUND"):
        redrive(a_flow("a>b"), states(a="completed", b="failed"), only="z")
