"""Runs: what goes when, how they end, how they are held, stopped and run again."""

from __future__ import annotations

import pytest
from tests.core.flows import a_choice, a_diamond, a_flow, a_sum
from tests.flow.steps import finish, step

from holdfast.core.flows.nodes import TriggerRule
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.errors import Conflict, NotFound
from holdfast.testing.factories import a_failure


async def test_nodes_go_when_their_upstreams_completed_and_the_run_ends_with_the_last(dispatcher):
    run = await dispatcher.runs.start(a_diamond())
    assert await dispatcher.runs.nodes(run) == {
        "start": "queued", "left": "blocked", "right": "blocked", "end": "blocked",
    }  # fmt: skip
    assert [len(await step(dispatcher)) for _ in range(3)] == [1, 2, 1]
    assert await dispatcher.runs.state(run) == "completed"


async def test_only_a_failed_node_fails_a_run_and_what_needs_it_is_upstream_failed(dispatcher):
    run = await dispatcher.runs.start(a_diamond())
    await finish(dispatcher, fail=[1])
    assert await dispatcher.runs.nodes(run) == {
        "start": "completed", "left": "failed", "right": "completed", "end": "upstream_failed",
    }  # fmt: skip
    assert await dispatcher.runs.state(run) == "failed"


async def test_a_run_whose_node_was_canceled_is_not_failed(dispatcher):
    flow = a_diamond()
    run = await dispatcher.runs.start(flow)
    await step(dispatcher)
    await dispatcher.cancel(dispatcher.runs.task_id(run, flow, "left"))
    await finish(dispatcher)
    assert (await dispatcher.runs.nodes(run))["end"] == "upstream_failed"
    assert await dispatcher.runs.state(run) == "completed"


async def test_all_done_runs_after_failures_and_one_success_after_the_first(dispatcher):
    flow = a_flow("a>all b>all a>one b>one", all=TriggerRule.ALL_DONE, one=TriggerRule.ONE_SUCCESS)
    run = await dispatcher.runs.start(flow)
    await finish(dispatcher, fail=[0])
    assert await dispatcher.runs.nodes(run) == {"a": "failed", "all": "completed", "b": "completed", "one": "completed"}


@pytest.mark.parametrize(("number", "big"), [(4, "completed"), (3, "skipped")])
async def test_a_condition_that_does_not_hold_skips_a_node_and_what_needs_it(dispatcher, number, big):
    run = await dispatcher.runs.start(a_choice())
    await finish(dispatcher, outputs={0: {"n": number}})
    assert await dispatcher.runs.nodes(run) == {"count": "completed", "big": big, "after": big, "anyway": "completed"}
    assert await dispatcher.runs.state(run) == "completed"


async def test_values_that_cannot_be_compared_fail_the_node_with_their_code(dispatcher):
    run = await dispatcher.runs.start(a_choice())
    await finish(dispatcher, outputs={0: {"n": "four"}})
    assert (await dispatcher.runs.nodes(run))["big"] == "failed"
    [code] = await dispatcher.engine.database.fetch("select code from holdfast.failure")
    assert code["code"] == "DAG_VALIDATION_CONDITION_INVALID"


async def test_bindings_carry_values_and_lists_keep_the_order_of_edges(dispatcher):
    run = await dispatcher.runs.start(a_sum(), {"x": 7})
    assert await step(dispatcher, outputs={0: {"v": 8}}) == [{"x": 7}]
    assert await step(dispatcher, outputs={i: {"v": i} for i in (1, 2, 3)}) == [{"i": i, "v": 8} for i in range(3)]
    assert await step(dispatcher, outputs={4: 6}) == [{"values": [1, 2, 3]}]
    assert await dispatcher.runs.output(run) == {"sum": 6}


@pytest.mark.parametrize(
    ("output", "code"),
    [
        ({"w": 1}, "DAG_VALIDATION_BINDING_OUTPUT_KEY_MISSING"),
        ([1], "DAG_VALIDATION_UPSTREAM_OUTPUT_INVALID"),
        (None, "DAG_VALIDATION_UPSTREAM_OUTPUT_INVALID"),
    ],
)
async def test_an_output_without_the_bound_key_fails_the_node_and_the_run_still_ends(dispatcher, output, code):
    run = await dispatcher.runs.start(a_sum(1), {"x": 1})
    await finish(dispatcher, outputs={0: output})
    assert await dispatcher.runs.nodes(run) == {"number": "completed", "part0": "failed", "sum": "upstream_failed"}
    assert await dispatcher.runs.state(run) == "failed"
    rows = await dispatcher.engine.database.fetch("select code, decision from holdfast.failure")
    assert [tuple(row) for row in rows] == [(code, "stop")]


async def test_an_output_of_ten_megabytes_travels_along_an_edge(dispatcher):
    run = await dispatcher.runs.start(a_sum(1), {"x": 1})
    large = "x" * 10_000_000
    await step(dispatcher, outputs={0: {"v": large}})
    [given] = await step(dispatcher, outputs={1: {"v": 1}})
    assert given["v"] == large
    await finish(dispatcher)
    assert await dispatcher.runs.state(run) == "completed"


async def test_a_paused_run_finishes_what_is_queued_and_releases_nothing(dispatcher):
    run = await dispatcher.runs.start(a_diamond())
    await dispatcher.runs.pause(run, reason="look first")
    assert await finish(dispatcher) == 1
    assert (await dispatcher.runs.nodes(run))["left"] == "blocked"
    await dispatcher.runs.resume(run)
    assert await finish(dispatcher) == 2
    assert await dispatcher.runs.state(run) == "completed"


async def test_pausing_and_resuming_twice_is_refused_with_the_reason(dispatcher):
    run = await dispatcher.runs.start(a_flow("a>b"))
    with pytest.raises(Conflict, match="not paused"):
        await dispatcher.runs.resume(run)
    await dispatcher.runs.pause(run)
    with pytest.raises(Conflict, match="paused already"):
        await dispatcher.runs.pause(run)
    with pytest.raises(NotFound):
        await dispatcher.runs.pause("77")
    await dispatcher.runs.cancel(run)


async def test_a_run_with_a_limit_has_no_more_nodes_active_than_that(dispatcher):
    flow = a_flow(" ".join(f"a>n{i} n{i}>z" for i in range(5)))
    run = await dispatcher.runs.start(flow, max_active=2)
    assert [len(await step(dispatcher)) for _ in range(5)] == [1, 2, 2, 1, 1]
    assert await dispatcher.runs.state(run) == "completed"


async def test_the_limit_also_holds_for_the_first_nodes(dispatcher):
    run = await dispatcher.runs.start(a_flow(alone=["a", "b", "c"]), max_active=1)
    assert await finish(dispatcher) == 3
    assert await dispatcher.runs.state(run) == "completed"


async def test_canceling_ends_what_waits_and_asks_what_runs_to_stop(dispatcher):
    run = await dispatcher.runs.start(a_flow("a>b", alone=["c"]))
    lease = await dispatcher.claim_one()
    await dispatcher.runs.cancel(run, reason="wrong day", actor="ada")
    assert await dispatcher.runs.nodes(run) == {"a": "running", "b": "canceled", "c": "canceled"}
    assert await dispatcher.runs.state(run) == "open"
    assert (await dispatcher.heartbeat(lease)).canceled == {lease.claimed.task_id}
    await dispatcher.settle(lease, Completed(b"1"))
    assert await dispatcher.runs.state(run) == "canceled"


async def test_a_run_with_nothing_active_is_canceled_at_once(dispatcher):
    run = await dispatcher.runs.start(a_flow("a>b"))
    await dispatcher.runs.pause(run)
    await finish(dispatcher)
    await dispatcher.runs.cancel(run)
    assert await dispatcher.runs.state(run) == "canceled"
    with pytest.raises(Conflict, match="it is canceled"):
        await dispatcher.runs.cancel(run)


async def test_what_a_crash_left_uncanceled_is_found(dispatcher):
    run = await dispatcher.runs.start(a_flow("a>b"))
    await dispatcher.engine.database.fetch(
        "update holdfast.run set canceled_at = holdfast.instant(), canceled_by = 'x', pending = active"
    )
    await dispatcher.runs.repair_once()
    assert await dispatcher.runs.state(run) == "canceled"


async def test_retry_runs_failed_nodes_and_their_descendants_again_and_keeps_the_rest(dispatcher):
    run = await dispatcher.runs.start(a_diamond())
    await finish(dispatcher, fail=[1])
    assert await dispatcher.runs.retry(run) == ["left", "end"]
    assert await dispatcher.runs.state(run) == "open"
    await finish(dispatcher)
    assert await dispatcher.runs.attempts(run) == {"start": 1, "left": 2, "right": 1, "end": 1}
    assert await dispatcher.runs.state(run) == "completed"


async def test_retry_while_others_run_leaves_them_alone(dispatcher):
    run = await dispatcher.runs.start(a_diamond())
    await step(dispatcher)
    left, right = await dispatcher.claim(2)
    await dispatcher.settle(left, Failed(a_failure()))
    assert await dispatcher.runs.retry(run) == ["left", "end"]
    await dispatcher.settle(right, Completed(b"1"))
    await finish(dispatcher)
    assert await dispatcher.runs.attempts(run) == {"start": 1, "left": 2, "right": 1, "end": 1}
    assert await dispatcher.runs.state(run) == "completed"


async def test_one_node_can_be_run_again_with_what_follows(dispatcher):
    run = await dispatcher.runs.start(a_sum(1), {"x": 1})
    for value in (1, 2):
        await finish(dispatcher, outputs={0: {"v": 1}, 1: {"v": value}, 2: value})
        assert await dispatcher.runs.output(run) == {"sum": value}
        if value == 1:
            assert await dispatcher.runs.retry(run, only="part0") == ["part0", "sum"]
            assert await dispatcher.runs.output(run) == {"sum": None}


async def test_nothing_to_retry_is_refused(dispatcher):
    run = await dispatcher.runs.start(a_flow("a>b"))
    with pytest.raises(Conflict, match="none of its nodes failed"):
        await dispatcher.runs.retry(run)
    with pytest.raises(NotFound):
        await dispatcher.runs.retry(run, only="z")
    with pytest.raises(Conflict):
        await dispatcher.runs.retry(run, only="a")
    await dispatcher.runs.cancel(run)
    with pytest.raises(Conflict, match="it was canceled"):
        await dispatcher.runs.retry(run)


async def test_runs_of_thousands_start_in_one_call(dispatcher):
    runs = await dispatcher.runs.start_many(a_sum(), [{"x": i} for i in range(2_000)])
    assert len(set(runs)) == 2_000
    assert [given["x"] for given in await step(dispatcher, outputs={0: {"v": 1}})] == list(range(100))
