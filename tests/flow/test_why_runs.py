"""Why a run or a node is where it is, read from a real database in every position."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.flows import a_choice, a_diamond, a_flow, a_map, a_parent, a_sum, a_wait
from tests.flow.steps import finish, step

from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.queries.explain_run import why, why_node, why_run
from holdfast.errors import NotFound
from holdfast.testing.factories import a_failure


@pytest.fixture
def ask(engine):
    """The explanation of a run, or of one of its nodes."""

    async def ask(run, node=None):
        place = (engine.database, engine.catalog, 1, int(run))
        return await (why_run(*place) if node is None else why_node(*place, node))

    return ask


async def test_a_blocked_node_names_its_upstreams_and_its_task_id_will_do(harness, engine, ask):
    run = await harness.runs.start(a_diamond())
    await step(harness)
    await harness.settle(await harness.claim_one(), Completed(b"1"))
    found = await ask(run, "end")
    assert found.headline == "Blocked: waits for 1 of 2 upstreams: right (queued)."
    assert await why(engine.database, engine.catalog, 1, int(run) + 4) == found
    await finish(harness)


async def test_held_nodes_say_who_paused_the_run_or_that_it_is_full(harness, ask):
    run = await harness.runs.start(a_flow("a>b"))
    await harness.runs.pause(run, actor="ada", reason="look first")
    await finish(harness)
    assert (await ask(run, "b")).headline.endswith("ago: look first.")
    assert (await ask(run)).headline.startswith(f"Paused: ada paused run {run}")
    await harness.runs.resume(run)
    full = await harness.runs.start(replace(a_flow(alone=["x", "y"]), version=2), max_active=1)
    assert (await ask(full, "y")).code == "run_limit_reached"
    assert "1 node held back" in (await ask(full)).evidence
    await finish(harness)


async def test_a_node_behind_a_failure_names_it_from_afar(harness, ask):
    run = await harness.runs.start(a_flow("a>b b>c"))
    await finish(harness, fail=[0])
    blamed = "a failed: DAG_TASK_EXECUTION_EXCEPTION: connection reset by peer."
    assert (await ask(run, "c")).headline == f"Did not run: {blamed}"
    assert (await ask(run)).headline.endswith(f": {blamed}")
    assert (await ask(run, "a")).headline.startswith("Failed for good after 1 attempt")


async def test_a_skipped_node_shows_its_condition_and_what_it_saw(harness, ask):
    run = await harness.runs.start(a_choice())
    await finish(harness, outputs={0: {"n": 2}})
    assert (await ask(run, "big")).headline == "Skipped: its condition does not hold: count.n > 3; it was 2."
    assert (await ask(run, "after")).headline == "Skipped because big was skipped."


async def test_items_are_counted_and_their_failure_is_told(harness, engine, ask):
    run = await harness.runs.start(a_map())
    await step(harness, outputs={0: {"all": [1, 2, 3]}})
    first, second, third = await harness.claim(10)
    await harness.settle(first, Completed(b"1"))
    await harness.settle(second, Failed(a_failure()))
    assert (await ask(run, "double")).headline == "Running as items: 1 of 3 done, 1 failed, 1 to go."
    item = await why(engine.database, engine.catalog, 1, third.claimed.task_id)
    assert item.evidence[-1].startswith(f"item 2 of node double of run {run}")
    await harness.settle(third, Completed(b"1"))
    failed = await ask(run, "double")
    assert failed.headline.startswith("Failed for good: 1 of 3 items failed, the last one: DAG_TASK_EXECUTION")
    assert (await ask(run, "gather")).headline.startswith("Did not run: double failed: ")


async def test_waits_approvals_and_children_say_what_they_wait_for(harness, ask):
    await harness.runs.snapshot(a_sum(1))
    run = await harness.runs.start(a_wait(timeout_seconds=3600.0))
    assert (await ask(run, "paid")).headline.startswith("Waits for the event payment, for ")
    assert (await ask(run, "paid")).moves == (f"holdfast run signal payment --run {run}",)
    whole = await ask(run)
    assert whole.headline.startswith("Waits at paid for the event payment, for ") and whole.code == "waiting_for_event"
    assert whole.moves == (f"holdfast run signal payment --run {run}", f"holdfast run watch {run}")
    parent = await harness.runs.start(a_parent())
    inner = await ask(parent, "inner")
    assert inner.headline.startswith("Runs shop.sum as run ") and inner.headline.endswith("queued: 0 of 3 nodes ended.")
    await harness.runs.cancel(run, actor="ada", reason="enough")
    assert (await ask(run, "ship")).headline == "Canceled with its run by ada: enough."
    await harness.runs.cancel(parent)


async def test_an_approval_waits_and_a_rejection_fails(harness, ask):
    run = await harness.runs.start(a_wait(config={"approval": True}))
    assert (await ask(run, "paid")).code == (await ask(run)).code == "waiting_for_approval"
    approve, reject = f"holdfast run approve {run} paid", f"holdfast run reject {run} paid --reason TEXT"
    assert (await ask(run, "paid")).moves == (approve, reject)
    assert (await ask(run)).moves == (approve, reject, f"holdfast run watch {run}")
    await harness.runs.answer(run, "paid", is_given=False, reason="no", actor="ada")
    assert (await ask(run, "paid")).headline == "Failed for good: approval_rejected: ada rejected paid: no."


async def test_a_run_goes_through_its_states_with_true_sentences(harness, ask):
    run = await harness.runs.start(a_diamond())
    queued = await ask(run)
    assert queued.headline == "Queued: none of its 4 nodes has begun."
    assert queued.evidence[1].startswith("start: Waiting for a worker: ")
    await step(harness)
    left, right = await harness.claim(2)
    assert "1 of 4 nodes ended, 2 running (left, right)" in (await ask(run)).headline
    await harness.settle(left, Failed(a_failure()))
    assert "; still under way: 1 running (right)." in (await ask(run)).headline
    await harness.settle(right, Completed(b"1"))
    assert (await ask(run)).state == "failed"
    await harness.runs.retry(run)
    await finish(harness)
    done = await ask(run)
    assert done.headline.endswith(": 4 completed.") and "run again 1 time" in done.evidence


async def test_a_run_being_canceled_names_what_it_waits_for(harness, ask):
    run = await harness.runs.start(a_flow("a>b"))
    lease = await harness.claim_one()
    await harness.runs.cancel(run, actor="ada")
    assert (await ask(run)).headline.endswith("it ends when what is under way stops: 1 running (a).")
    await harness.settle(lease, Completed(b"1"))
    assert (await ask(run)).code == "canceled"


async def test_the_end_of_an_earlier_generation_explains_nothing(harness, ask):
    run = await harness.runs.start(a_flow("a>b"))
    await finish(harness)
    await harness.runs.retry(run, only="a")
    assert (await ask(run, "b")).headline == "Blocked: waits for 1 of 1 upstream: a (queued)."
    await finish(harness)
    assert (await ask(run, "b")).headline.startswith("Completed ")


async def test_unknown_runs_and_nodes_are_not_found(harness, engine, ask):
    run = await harness.runs.start(a_flow("a>b"))
    for number, node in (("77", None), ("77", "a"), (run, "z")):
        with pytest.raises(NotFound):
            await ask(number, node)
    with pytest.raises(NotFound):
        await why(engine.database, engine.catalog, 2, int(run) + 2)
    assert (await why(engine.database, engine.catalog, 1, int(run))).state == "queued"
    await finish(harness)
