"""Runs: what goes when, how they end, how they are held, stopped and run again."""

from __future__ import annotations

import pytest
from tests.core.flows import a_choice, a_diamond, a_flow, a_sum
from tests.flow.steps import finish, step

from holdfast.core.flows.nodes import TriggerRule
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.errors import Conflict, NotFound
from holdfast.testing.factories import a_failure


async def test_nodes_go_when_their_upstreams_completed_and_the_run_ends_with_the_last(harness):
    run = await harness.runs.start(a_diamond())
    assert await harness.runs.nodes(run) == {
        "start": "queued", "left": "blocked", "right": "blocked", "end": "blocked",
    }  # fmt: skip
    assert [len(await step(harness)) for _ in range(3)] == [1, 2, 1]
    assert await harness.runs.state(run) == "completed"


async def test_only_a_failed_node_fails_a_run_and_what_needs_it_is_upstream_failed(harness):
    run = await harness.runs.start(a_diamond())
    await finish(harness, fail=[1])
    assert await harness.runs.nodes(run) == {
        "start": "completed", "left": "failed", "right": "completed", "end": "upstream_failed",
    }  # fmt: skip
    assert await harness.runs.state(run) == "failed"


async def test_a_run_whose_node_was_canceled_is_not_failed(harness):
    flow = a_diamond()
    run = await harness.runs.start(flow)
    await step(harness)
    await harness.cancel(harness.runs.task_id(run, flow, "left"))
    await finish(harness)
    assert (await harness.runs.nodes(run))["end"] == "upstream_failed"
    assert await harness.runs.state(run) == "completed"


async def test_all_done_runs_after_failures_and_one_success_after_the_first(harness):
    flow = a_flow("a>all b>all a>one b>one", all=TriggerRule.ALL_DONE, one=TriggerRule.ONE_SUCCESS)
    run = await harness.runs.start(flow)
    await finish(harness, fail=[0])
    assert await harness.runs.nodes(run) == {"a": "failed", "all": "completed", "b": "completed", "one": "completed"}


@pytest.mark.parametrize(("number", "big"), [(4, "completed"), (3, "skipped")])
async def test_a_condition_that_does_not_hold_skips_a_node_and_what_needs_it(harness, number, big):
    run = await harness.runs.start(a_choice())
    await finish(harness, outputs={0: {"n": number}})
    assert await harness.runs.nodes(run) == {"count": "completed", "big": big, "after": big, "anyway": "completed"}
    assert await harness.runs.state(run) == "completed"


async def test_values_that_cannot_be_compared_fail_the_node_with_their_code(harness):
    run = await harness.runs.start(a_choice())
    await finish(harness, outputs={0: {"n": "four"}})
    assert (await harness.runs.nodes(run))["big"] == "failed"
    [code] = await harness.engine.database.fetch("select code from holdfast.failure")
    assert code["code"] == "DAG_VALIDATION_CONDITION_INVALID"


async def test_bindings_carry_values_and_lists_keep_the_order_of_edges(harness):
    run = await harness.runs.start(a_sum(), {"x": 7})
    assert await step(harness, outputs={0: {"v": 8}}) == [{"x": 7}]
    assert await step(harness, outputs={i: {"v": i} for i in (1, 2, 3)}) == [{"i": i, "v": 8} for i in range(3)]
    assert await step(harness, outputs={4: 6}) == [{"values": [1, 2, 3]}]
    assert await harness.runs.output(run) == {"sum": 6}


@pytest.mark.parametrize(
    ("output", "code"),
    [
        ({"w": 1}, "DAG_VALIDATION_BINDING_OUTPUT_KEY_MISSING"),
        ([1], "DAG_VALIDATION_UPSTREAM_OUTPUT_INVALID"),
        (None, "DAG_VALIDATION_UPSTREAM_OUTPUT_INVALID"),
    ],
)
async def test_an_output_without_the_bound_key_fails_the_node_and_the_run_still_ends(harness, output, code):
    run = await harness.runs.start(a_sum(1), {"x": 1})
    await finish(harness, outputs={0: output})
    assert await harness.runs.nodes(run) == {"number": "completed", "part0": "failed", "sum": "upstream_failed"}
    assert await harness.runs.state(run) == "failed"
    rows = await harness.engine.database.fetch("select code, decision from holdfast.failure")
    assert [tuple(row) for row in rows] == [(code, "stop")]


async def test_an_output_of_ten_megabytes_travels_along_an_edge(harness):
    run = await harness.runs.start(a_sum(1), {"x": 1})
    large = "x" * 10_000_000
    await step(harness, outputs={0: {"v": large}})
    [given] = await step(harness, outputs={1: {"v": 1}})
    assert given["v"] == large
    await finish(harness)
    assert await harness.runs.state(run) == "completed"


async def test_a_paused_run_finishes_what_is_queued_and_releases_nothing(harness):
    run = await harness.runs.start(a_diamond())
    await harness.runs.pause(run, reason="look first")
    assert await finish(harness) == 1
    assert (await harness.runs.nodes(run))["left"] == "blocked"
    await harness.runs.resume(run)
    assert await finish(harness) == 2
    assert await harness.runs.state(run) == "completed"


async def test_pausing_and_resuming_twice_is_refused_with_the_reason(harness):
    run = await harness.runs.start(a_flow("a>b"))
    with pytest.raises(Conflict, match="not paused"):
        await harness.runs.resume(run)
    await harness.runs.pause(run)
    with pytest.raises(Conflict, match="paused already"):
        await harness.runs.pause(run)
    with pytest.raises(NotFound):
        await harness.runs.pause("77")
    await harness.runs.cancel(run)


async def test_a_run_with_a_limit_has_no_more_nodes_active_than_that(harness):
    flow = a_flow(" ".join(f"a>n{i} n{i}>z" for i in range(5)))
    run = await harness.runs.start(flow, max_active=2)
    assert [len(await step(harness)) for _ in range(5)] == [1, 2, 2, 1, 1]
    assert await harness.runs.state(run) == "completed"


async def test_the_limit_also_holds_for_the_first_nodes(harness):
    run = await harness.runs.start(a_flow(alone=["a", "b", "c"]), max_active=1)
    assert await finish(harness) == 3
    assert await harness.runs.state(run) == "completed"


async def test_canceling_ends_what_waits_and_asks_what_runs_to_stop(harness):
    run = await harness.runs.start(a_flow("a>b", alone=["c"]))
    lease = await harness.claim_one()
    await harness.runs.cancel(run, reason="wrong day", actor="ada")
    assert await harness.runs.nodes(run) == {"a": "running", "b": "canceled", "c": "canceled"}
    assert await harness.runs.state(run) == "open"
    assert (await harness.heartbeat(lease)).canceled == {lease.claimed.task_id}
    await harness.settle(lease, Completed(b"1"))
    assert await harness.runs.state(run) == "canceled"


async def test_a_run_with_nothing_active_is_canceled_at_once(harness):
    run = await harness.runs.start(a_flow("a>b"))
    await harness.runs.pause(run)
    await finish(harness)
    await harness.runs.cancel(run)
    assert await harness.runs.state(run) == "canceled"
    with pytest.raises(Conflict, match="it is canceled"):
        await harness.runs.cancel(run)


async def test_what_a_crash_left_uncanceled_is_found(harness):
    run = await harness.runs.start(a_flow("a>b"))
    await harness.engine.database.fetch(
        "update holdfast.run set canceled_at = holdfast.instant(), canceled_by = 'x', pending = active"
    )
    await harness.runs.repair_once()
    assert await harness.runs.state(run) == "canceled"


async def test_retry_runs_failed_nodes_and_their_descendants_again_and_keeps_the_rest(harness):
    run = await harness.runs.start(a_diamond())
    await finish(harness, fail=[1])
    assert await harness.runs.retry(run) == ["left", "end"]
    assert await harness.runs.state(run) == "open"
    await finish(harness)
    assert await harness.runs.attempts(run) == {"start": 1, "left": 2, "right": 1, "end": 1}
    assert await harness.runs.state(run) == "completed"


async def test_retry_while_others_run_leaves_them_alone(harness):
    run = await harness.runs.start(a_diamond())
    await step(harness)
    left, right = await harness.claim(2)
    await harness.settle(left, Failed(a_failure()))
    assert await harness.runs.retry(run) == ["left", "end"]
    await harness.settle(right, Completed(b"1"))
    await finish(harness)
    assert await harness.runs.attempts(run) == {"start": 1, "left": 2, "right": 1, "end": 1}
    assert await harness.runs.state(run) == "completed"


async def test_one_node_can_be_run_again_with_what_follows(harness):
    run = await harness.runs.start(a_sum(1), {"x": 1})
    for value in (1, 2):
        await finish(harness, outputs={0: {"v": 1}, 1: {"v": value}, 2: value})
        assert await harness.runs.output(run) == {"sum": value}
        if value == 1:
            assert await harness.runs.retry(run, only="part0") == ["part0", "sum"]
            assert await harness.runs.output(run) == {"sum": None}


async def test_nothing_to_retry_is_refused(harness):
    run = await harness.runs.start(a_flow("a>b"))
    with pytest.raises(Conflict, match="none of its nodes failed"):
        await harness.runs.retry(run)
    with pytest.raises(NotFound):
        await harness.runs.retry(run, only="z")
    with pytest.raises(Conflict):
        await harness.runs.retry(run, only="a")
    await harness.runs.cancel(run)
    with pytest.raises(Conflict, match="it was canceled"):
        await harness.runs.retry(run)


async def test_runs_of_thousands_start_in_one_call(harness):
    runs = await harness.runs.start_many(a_sum(), [{"x": i} for i in range(2_000)])
    assert len(set(runs)) == 2_000
    assert [given["x"] for given in await step(harness, outputs={0: {"v": 1}})] == list(range(100))
