"""Letters of nodes: the run goes again as one, in the order and with the counts of S2."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from tests.core.flows import a_diamond, a_flow, a_node, an_edge, an_order_edge

from holdfast.core.flows.condition import Condition, Operator
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import NodeKind, TriggerRule
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.audit import list_audit
from holdfast.engine.lifecycle.dead_letters.commands import ignore
from holdfast.engine.lifecycle.dead_letters.sweep import repair_letters_once, sweep_once
from holdfast.engine.queries.dead_letters import show_letter
from holdfast.errors import Conflict
from holdfast.testing import factories as a


async def node(harness, run_id, flow, name):
    """The lease of a node's next attempt."""
    task_id = harness.runs.task_id(run_id, flow, name)
    [lease] = [one for one in await harness.claim(10) if one.task_id == task_id]
    return lease


async def end(harness, *, fails=(), flow=None, run_id=None):
    """Claim whatever is there and end it: the nodes named fail, the others complete."""
    failing = {harness.runs.task_id(run_id, flow, name) for name in fails}
    for lease in await harness.claim(10):
        outcome = Failed(a.a_failure()) if lease.task_id in failing else Completed(b"{}")
        await harness.settle(lease, outcome)


async def a_failed_diamond(harness, fails=("left", "right")):
    flow = a_diamond()
    run_id = await harness.runs.start(flow)
    await end(harness)
    await end(harness, fails=fails, flow=flow, run_id=run_id)
    return run_id, flow


async def ask(harness, task_id):
    """Ask for the letters of one task to be retried, without dispatching them."""
    await harness.engine.database.fetch(
        "update holdfast.dead_letter set state = 'retry_requested', disposition = 'retry_requested', actor = 'ann',"
        " wants_sweep = true where task_id = $1 and state = 'open'",
        int(task_id),
    )


async def events(harness):
    """Kind and detail of every event, whoever else keeps a transaction open."""
    rows = await harness.engine.database.fetch("select kind, detail::text from holdfast.event order by seq")
    return [(row["kind"], json.loads(row["detail"] or "null")) for row in rows]


async def letters(harness, run_id, flow, *names):
    return [one for name in names for one in await harness.letters(harness.runs.task_id(run_id, flow, name))]


async def test_a_node_that_fails_for_good_opens_a_letter_of_its_run(harness):
    run_id, flow = await a_failed_diamond(harness, fails=("left",))
    [letter] = await letters(harness, run_id, flow, "left")
    assert (letter.run_id, letter.state) == (run_id, "open")
    shown = await show_letter(harness.engine.database, 1, int(letter.dead_letter_id))
    assert bytes(shown.input) == b"{}"


async def test_s2_a_run_is_requeued_once_and_all_its_due_letters_are_counted(harness):
    run_id, flow = await a_failed_diamond(harness)
    for name in ("left", "right"):
        await ask(harness, harness.runs.task_id(run_id, flow, name))
    assert await harness.sweep_once() == 2
    found = await letters(harness, run_id, flow, "left", "right")
    assert [(one.state, one.dispatches) for one in found] == [("retrying", 1)] * 2
    told = await events(harness)
    assert [kind for kind, _ in told].count("execution.redriven") == 1


async def test_s2_successes_outside_the_reset_set_stay_and_everything_inside_runs_again(harness):
    run_id, flow = await a_failed_diamond(harness, fails=("left",))
    await ask(harness, harness.runs.task_id(run_id, flow, "left"))
    assert await harness.sweep_once() == 1
    assert await harness.runs.nodes(run_id) == {
        "start": "completed", "left": "queued", "right": "completed", "end": "blocked",
    }  # fmt: skip
    await end(harness)
    await end(harness)
    assert await harness.runs.state(run_id) == "completed"
    assert [one.state for one in await letters(harness, run_id, flow, "left")] == ["resolved"]


async def test_s2_the_names_of_reason_event_and_actor_are_kept(harness):
    run_id, flow = await a_failed_diamond(harness, fails=("left",))
    await ask(harness, harness.runs.task_id(run_id, flow, "left"))
    await harness.sweep_once()
    told = dict(await events(harness))
    assert told["execution.redriven"]["reason"] == "stateful_dead_letter_retry_dispatched"
    assert told["execution.redriven"]["actor"] == "holdfast:dead-letter-dispatcher"
    detail = told["stateful_dead_letter_retry_requeued"]
    assert detail["outcome"] == "requeued_for_dead_letter_retry"
    [letter] = await letters(harness, run_id, flow, "left")
    assert detail["dead_letters"] == [
        {
            "dead_letter_id": int(letter.dead_letter_id),
            "source_id": letter.source_id,
            "attempts": 1,
            "run_id": int(run_id),
        }
    ]


async def test_s2_a_blocked_run_is_requeued_while_others_still_run(harness):
    flow = a_diamond()
    run_id = await harness.runs.start(flow)
    await end(harness)
    left, right = sorted(await harness.claim(10), key=lambda lease: int(lease.task_id))
    await harness.settle(left, Failed(a.a_failure()))
    await ask(harness, left.task_id)
    assert await harness.sweep_once() == 1
    assert (await harness.runs.nodes(run_id))["left"] == "queued"
    await harness.settle(right, Completed(b"{}"))
    await end(harness)
    await end(harness)
    assert await harness.runs.state(run_id) == "completed"


@pytest.mark.parametrize("verb", ["pause", "cancel"])
async def test_s2_a_paused_or_canceled_run_is_left(harness, verb):
    flow = a_diamond()
    run_id = await harness.runs.start(flow)
    await end(harness)
    left, _ = sorted(await harness.claim(10), key=lambda lease: int(lease.task_id))
    await harness.settle(left, Failed(a.a_failure()))
    await ask(harness, left.task_id)
    await getattr(harness.runs, verb)(run_id)
    assert await harness.sweep_once() == 0
    assert [one.state for one in await harness.letters(left.task_id)] == ["retry_requested"]


async def test_s2_a_letter_of_a_run_that_is_gone_is_left(harness):
    run_id, flow = await a_failed_diamond(harness, fails=("left",))
    task_id = harness.runs.task_id(run_id, flow, "left")
    await ask(harness, task_id)
    await harness.engine.database.fetch("update holdfast.dead_letter set run_id = 77")
    assert await harness.sweep_once() == 0
    await harness.engine.database.fetch("update holdfast.dead_letter set run_id = $1", int(run_id))


@pytest.mark.breaks_invariants
async def test_s2_another_tenants_letter_never_drives_this_run(harness):
    run_id, flow = await a_failed_diamond(harness, fails=("left",))
    await ask(harness, harness.runs.task_id(run_id, flow, "left"))
    await harness.engine.database.fetch("insert into holdfast.tenant (tenant_id, name) values (2, 'other')")
    await harness.engine.database.fetch("update holdfast.dead_letter set tenant_id = 2")
    assert await harness.sweep_once() == 0
    assert await harness.runs.state(run_id) == "failed"


async def test_s2_five_dispatches_of_a_run_and_no_more(harness, clock):
    run_id, flow = await a_failed_diamond(harness, fails=("left",))
    await ask(harness, harness.runs.task_id(run_id, flow, "left"))
    acted = []
    for _ in range(7):
        acted.append(await harness.sweep_once())
        await end(harness, fails=("left",), flow=flow, run_id=run_id)
        await clock.advance(seconds=300)
    assert acted == [1, 1, 1, 1, 1, 1, 0]
    found = await letters(harness, run_id, flow, "left")
    assert [one.state for one in found] == ["ignored", *["open"] * 5]
    assert found[0].disposition == "retry_exhausted"


async def test_a_letter_whose_node_never_ran_again_goes_with_its_run(harness, clock):
    """Another failed before it: due with its run, counted with its run."""
    flow = a_flow("a>b")
    run_id = await harness.runs.start(flow)
    await end(harness)
    await end(harness, fails=("b",), flow=flow, run_id=run_id)
    await harness.runs.retry(run_id, only="a")
    await end(harness, fails=("a",), flow=flow, run_id=run_id)
    assert await harness.runs.nodes(run_id) == {"a": "failed", "b": "upstream_failed"}
    await ask(harness, harness.runs.task_id(run_id, flow, "a"))
    await clock.advance(seconds=300)
    assert await harness.sweep_once() == 2
    assert [one.dispatches for one in await letters(harness, run_id, flow, "a", "b")] == [1, 2]


@pytest.mark.parametrize("flow", [a_flow(alone=("x", "y")), a_flow("y>x", x=TriggerRule.ALL_DONE)])
async def test_a_letter_whose_node_is_under_way_is_not_counted_when_another_goes_again(harness, clock, flow):
    """Nothing was tried for it: it would be parked as exhausted while its first retry still runs."""
    await clock.freeze()
    run_id = await harness.runs.start(flow)
    for _ in range(2):
        await end(harness, fails=("x", "y"), flow=flow, run_id=run_id)
    x, y = (harness.runs.task_id(run_id, flow, name) for name in ("x", "y"))
    for task_id in (x, y):
        await ask(harness, task_id)
    assert await harness.sweep_once() == 2
    await harness.settle(await harness.claim_task(y), Failed(a.a_failure()))
    await clock.advance(seconds=300)
    assert (await harness.task(x)).state == "queued"
    assert await harness.sweep_once() == 1
    assert [one.dispatches for one in await letters(harness, run_id, flow, "x", "y")] == [1, 2, 0]


async def test_the_letters_of_a_canceled_run_that_were_asked_for_are_parked(harness):
    run_id, left, right = await a_half_failed_diamond(harness)
    await ask(harness, left.task_id)
    await harness.runs.cancel(run_id)
    assert await repair_letters_once(harness.engine.database) == 0
    await harness.settle(right, Completed(b"{}"))
    assert [await repair_letters_once(harness.engine.database) for _ in range(2)] == [1, 0]
    [letter] = await harness.letters(left.task_id)
    assert (letter.state, letter.disposition_reason) == ("ignored", "its task or run was canceled")


async def test_the_letter_of_a_node_that_its_run_completed_without_is_closed(harness):
    """Run again from further up, the flow took another way."""
    condition = Condition(upstream="count", output_key="n", operator=Operator.GREATER, value=3)
    nodes = (a_node("count"), a_node("big", condition=condition))
    flow = FlowDefinition(name="shop.choice", nodes=nodes, edges=(an_order_edge("count>big"),)).validated()
    run_id = await harness.runs.start(flow)
    for outcome in (Completed(b'{"n":4}'), Failed(a.a_failure())):
        await harness.settle(await harness.claim_one(), outcome)
    await harness.runs.retry(run_id, only="count")
    await harness.settle(await harness.claim_one(), Completed(b'{"n":1}'))
    assert await harness.runs.state(run_id) == "completed"
    assert await repair_letters_once(harness.engine.database) == 1
    [letter] = await letters(harness, run_id, flow, "big")
    assert (letter.state, letter.disposition) == ("resolved", "superseded")


async def a_failed_item(harness):
    """A run whose list had one member, which failed; and the lease of that."""
    nodes = (a_node("list"), a_node("each", kind=NodeKind.MAP, map_over="x"))
    flow = FlowDefinition(name="shop.map", nodes=nodes, edges=(an_edge("list>each", "all>x"),)).validated()
    run_id = await harness.runs.start(flow)
    for outcome in (Completed(b'{"all":[1]}'), Failed(a.a_failure())):
        item = await harness.claim_one()
        await harness.settle(item, outcome)
    return run_id, item


async def test_an_item_that_others_replaced_while_it_retried_is_resolved_with_its_node(harness, clock):
    """Its letter went along when the list before it was run again, and again; then the others completed."""
    run_id, item = await a_failed_item(harness)
    await harness.runs.retry(run_id, only="list")
    await harness.settle(await harness.claim_one(), Failed(a.a_failure()))
    await clock.advance(seconds=300)
    assert await harness.sweep_once() == 1
    assert [(one.state, one.dispatches) for one in await harness.letters(item.task_id)] == [("retrying", 1)]
    for outcome in (Completed(b'{"all":[1]}'), Completed(b"1")):
        await harness.settle(await harness.claim_one(), outcome)
    assert await repair_letters_once(harness.engine.database) == 1
    assert await harness.sweep_once() == 1
    assert [one.state for one in await harness.letters(item.task_id)] == ["resolved"]


async def test_two_dispatchers_sweeping_one_run_requeue_it_once(harness):
    engine = harness.engine
    for _ in range(3):
        run_id, flow = await a_failed_diamond(harness)
        for name in ("left", "right"):
            await ask(harness, harness.runs.task_id(run_id, flow, name))
        swept = await asyncio.gather(*(sweep_once(engine.database, engine.catalog) for _ in range(4)))
        assert sum(one.count for one in swept) == 2
        assert [one.dispatches for one in await letters(harness, run_id, flow, "left", "right")] == [1, 1]
        await end(harness)
        await end(harness)


async def test_an_operator_re_drives_a_run_through_the_letter_of_its_node(harness):
    run_id, flow = await a_failed_diamond(harness, fails=("left",))
    task_id = harness.runs.task_id(run_id, flow, "left")
    answers = await asyncio.gather(*(harness.redrive(task_id) for _ in range(4)), return_exceptions=True)
    assert [one for one in answers if one == 2] == [2]
    assert len([one for one in answers if isinstance(one, Conflict)]) == 3
    assert [one.state for one in await letters(harness, run_id, flow, "left")] == ["retrying"]


ABANDON = {"actor": "ann", "reason": "not worth it", "abandons": True}


async def a_half_failed_diamond(harness):
    """A run that is still open: one node failed, another runs."""
    run_id = await harness.runs.start(a_diamond())
    await end(harness)
    left, right = sorted(await harness.claim(10), key=lambda lease: int(lease.task_id))
    await harness.settle(left, Failed(a.a_failure()))
    return run_id, left, right


async def test_abandoning_a_letter_cancels_the_run_that_waits_on_it(harness):
    run_id, left, right = await a_half_failed_diamond(harness)
    await ignore(harness.engine, 1, task_id=int(left.task_id), **ABANDON)
    await harness.settle(right, Completed(b"{}"))
    assert await harness.runs.state(run_id) == "canceled"
    assert [one.disposition for one in await harness.letters(left.task_id)] == ["abandoned"]


async def test_what_was_ignored_may_be_abandoned_later_and_again(harness):
    run_id, left, right = await a_half_failed_diamond(harness)
    await ignore(harness.engine, 1, task_id=int(left.task_id), actor="ann", reason="known")
    asked = [await ignore(harness.engine, 1, task_id=int(left.task_id), **ABANDON) for _ in range(2)]
    assert [one.letters for one in asked] == [1, 0]
    await harness.settle(right, Completed(b"{}"))
    assert await harness.runs.state(run_id) == "canceled"


async def test_a_letter_is_not_abandoned_without_its_run(harness, monkeypatch):
    """One transaction: when the run cannot be canceled, the letter is as it was."""

    async def breaks(*_arguments, **_options):
        raise RuntimeError("the run could not be canceled")

    _, left, _ = await a_half_failed_diamond(harness)
    monkeypatch.setattr("holdfast.engine.lifecycle.dead_letters.commands.cancel_run_in", breaks)
    with pytest.raises(RuntimeError):
        await ignore(harness.engine, 1, task_id=int(left.task_id), **ABANDON)
    assert [one.state for one in await harness.letters(left.task_id)] == ["open"]
    assert not await list_audit(harness.engine.database, 1)


async def test_a_retry_of_the_run_takes_its_letters_along(harness):
    run_id, flow = await a_failed_diamond(harness)
    await harness.runs.retry(run_id, actor="ann", reason="fixed")
    found = await letters(harness, run_id, flow, "left", "right")
    assert [(one.state, one.dispatches, one.actor) for one in found] == [("retrying", 1, "ann")] * 2


async def test_a_retry_of_one_node_leaves_the_letters_of_others_open(harness):
    run_id, flow = await a_failed_diamond(harness)
    await harness.runs.retry(run_id, only="left")
    found = await letters(harness, run_id, flow, "left", "right")
    assert [one.state for one in found] == ["retrying", "open"]


async def test_a_re_drive_of_one_node_tells_the_letters_of_all_that_go_with_it(harness):
    run_id, flow = await a_failed_diamond(harness)
    await harness.redrive(harness.runs.task_id(run_id, flow, "left"))
    found = await letters(harness, run_id, flow, "left", "right")
    assert [one.state for one in found] == ["retrying"] * 2


async def test_the_letter_of_an_item_that_others_replace_is_asked_for(harness):
    run_id, item = await a_failed_item(harness)
    await harness.runs.retry(run_id, only="list")
    assert [one.state for one in await harness.letters(item.task_id)] == ["retry_requested"]
    for outcome in (Completed(b'{"all":[1]}'), Completed(b"1")):
        await harness.settle(await harness.claim_one(), outcome)
    assert await harness.sweep_once() == 1
    assert [one.state for one in await harness.letters(item.task_id)] == ["resolved"]


async def a_diamond_that_stopped(harness, **policy):
    """Both branches failed for good at their first attempt, with retries left."""
    flow = a_diamond()
    run_id = await harness.runs.start(flow, **policy)
    await end(harness)
    for lease in await harness.claim(10):
        await harness.settle(lease, Failed(a.a_failure("validation: no such order")))
    return run_id, flow


async def test_s0_a_retry_of_a_node_runs_that_node_once_and_closes_its_letter(harness, clock):
    harness.runs.policy = replace(harness.runs.policy, max_retries=2)
    run_id, flow = await a_diamond_that_stopped(harness)
    left = harness.runs.task_id(run_id, flow, "left")
    assert await harness.retry(left) == 2
    found = await letters(harness, run_id, flow, "left", "right")
    assert [(one.state, one.disposition) for one in found] == [("resolved", "superseded"), ("open", "")]
    nodes = await harness.runs.nodes(run_id)
    assert nodes == {"start": "completed", "left": "queued", "right": "failed", "end": "upstream_failed"}
    for attempt in (2, 3):
        lease = await harness.claim_one()
        assert (lease.task_id, lease.attempt) == (left, attempt)
        await harness.settle(lease, Failed(a.a_failure("validation: no such order")))
        await clock.advance(seconds=300)
        assert await harness.sweep_once() == 0 and await harness.claim(10) == []
        if attempt == 2:
            assert await harness.retry(left) == 3
    with pytest.raises(Conflict, match="retry budget exhausted"):
        await harness.retry(left)
    assert await harness.redrive(left) == 4
