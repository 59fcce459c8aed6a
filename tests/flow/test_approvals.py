"""Approvals and events by hand: one answer counts, the others are told why not, and each leaves its row."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.core.flows import a_node, a_parent, a_sum, a_wait, an_order_edge
from tests.flow.steps import finish, step

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import Node, NodeKind
from holdfast.engine.audit import list_audit
from holdfast.engine.lifecycle.runs.signals import send_by_hand, send_signal
from holdfast.engine.queries.waiting import list_waits
from holdfast.errors import Conflict, Invalid, NotFound


def an_approval(**fields):
    return a_wait(config={"approval": True, "prompt": "Ship it?"}, **fields)


def a_late_approval():
    """The approval comes second."""
    nodes = (a_node("first"), Node(name="go", action="approval", kind=NodeKind.WAIT, config={"approval": True}))
    return FlowDefinition(name="shop.late", nodes=nodes, edges=(an_order_edge("first>go"),)).validated()


async def verbs(engine):
    return [(row.verb, row.actor, row.reason) for row in await list_audit(engine.database, 1)]


async def test_only_the_first_answer_counts(harness, engine):
    run = await harness.runs.start(an_approval())
    await harness.runs.answer(run, "paid", actor="ada")
    for is_given in (True, False):
        with pytest.raises(Conflict, match="ada approved it already") as refused:
            await harness.runs.answer(run, "paid", is_given=is_given, actor="bob")
        assert refused.value.code == "approval_answered"
    assert await verbs(engine) == [("run.approve", "ada", "")]
    assert await engine.database.fetchval("select count(*) from holdfast.signal") == 1
    await finish(harness)


async def test_of_two_who_answer_at_once_one_wins(harness, engine):
    run = await harness.runs.start(an_approval())
    answers = [harness.runs.answer(run, "paid", is_given=one % 2 == 0, actor=f"p{one}") for one in range(6)]
    ended = await asyncio.gather(*answers, return_exceptions=True)
    lost = [one for one in ended if one is not None]
    assert len(lost) == 5 and all(isinstance(one, Conflict) and one.code == "approval_answered" for one in lost)
    assert len(await verbs(engine)) == 1
    await finish(harness)


async def test_an_answer_after_the_deadline_is_refused_before_and_after_the_pass(harness, engine, clock):
    run = await harness.runs.start(an_approval(timeout_seconds=60))
    await clock.advance(61)
    for _ in range(2):
        with pytest.raises(Conflict) as refused:
            await harness.runs.answer(run, "paid")
        assert refused.value.code == "approval_overdue"
        await harness.runs.repair_once()
    assert (await harness.runs.nodes(run))["paid"] == "failed" and not await verbs(engine)


async def test_what_is_no_approval_cannot_be_answered(harness):
    run = await harness.runs.start(a_wait())
    for node in ("paid", "ship"):
        with pytest.raises(Invalid) as refused:
            await harness.runs.answer(run, node)
        assert refused.value.code == "not_an_approval"
    with pytest.raises(NotFound) as missing:
        await harness.runs.answer(run, "nowhere")
    assert (missing.value.code, "It has paid, ship." in str(missing.value)) == ("DAG_VALIDATION_NODE_NOT_FOUND", True)
    with pytest.raises(NotFound):
        await harness.runs.answer("999", "paid")
    with pytest.raises(Invalid):
        await harness.runs.answer(run, "paid", reason="x" * 1001)
    await harness.runs.cancel(run)


async def test_a_run_that_is_over_takes_no_answer(harness, engine):
    run, late = await harness.runs.start(an_approval()), await harness.runs.start(a_late_approval())
    for one in (run, late):
        await harness.runs.cancel(one)
    for one, node, code in ((run, "paid", "approval_over"), (late, "go", "run_not_open")):
        with pytest.raises(Conflict) as refused:
            await harness.runs.answer(one, node)
        assert refused.value.code == code
    assert await engine.database.fetchval("select count(*) from holdfast.signal") == 0


async def test_an_answer_before_the_question_is_kept_and_counts_once(harness):
    run = await harness.runs.start(a_late_approval())
    await harness.runs.answer(run, "go", actor="ada")
    with pytest.raises(Conflict):
        await harness.runs.answer(run, "go", is_given=False)
    await step(harness)
    assert await harness.runs.state(run) == "completed"


async def test_a_rejected_approval_that_runs_again_asks_again(harness):
    run = await harness.runs.start(an_approval())
    await harness.runs.answer(run, "paid", is_given=False, reason="too dear")
    assert await harness.runs.state(run) == "failed"
    await harness.runs.retry(run)
    assert (await harness.runs.nodes(run))["paid"] == "running"
    await harness.runs.answer(run, "paid")
    assert (await harness.runs.nodes(run))["paid"] == "completed"
    await finish(harness)


async def test_a_wait_may_fail_again_and_again(harness, clock):
    """Each failure is an attempt of its own: by an answer, by the deadline, and in a run of another flow."""
    run = await harness.runs.start(an_approval(timeout_seconds=60))
    await harness.runs.answer(run, "paid", is_given=False)
    await harness.runs.retry(run)
    await harness.runs.answer(run, "paid", is_given=False)
    for _ in range(2):
        await harness.runs.retry(run)
        await clock.advance(61)
        await harness.runs.repair_once()
    assert await harness.runs.state(run) == "failed"
    assert (await harness.runs.attempts(run))["paid"] == 4


async def test_a_run_in_a_run_may_fail_again_and_again(harness):
    await harness.runs.snapshot(a_sum(1))
    run = await harness.runs.start(a_parent())
    for _ in range(3):
        await finish(harness, fail=[0])
        assert await harness.runs.state(run) == "failed"
        await harness.runs.retry(run)
    await harness.runs.cancel(run)
    await harness.runs.repair_once()


async def test_an_approval_behind_a_node_that_runs_again_asks_again(harness, engine):
    """Who approved saw what the first try made, not what the second one will; what others were told stays."""
    other, run = await harness.runs.start(a_late_approval()), await harness.runs.start(a_late_approval())
    await harness.runs.answer(other, "go")
    await harness.runs.answer(run, "go")
    await finish(harness)
    await harness.runs.retry(run, only="first")
    await step(harness)
    assert await harness.runs.nodes(run) == {"first": "completed", "go": "running"}
    assert await engine.database.fetchval("select array_agg(wait_key) from holdfast.signal") == [f"approval:{other}:go"]
    await harness.runs.answer(run, "go")
    assert await harness.runs.state(run) == "completed"


async def test_what_waits_is_listed_with_what_answers_it(harness, engine):
    approval = await harness.runs.start(an_approval(timeout_seconds=3600))
    event = await harness.runs.start(replace(a_wait(config={"key": "monday 1"}), version=2))
    over = await harness.runs.start(replace(a_wait(), version=3))
    await harness.runs.cancel(over)
    first, second = await list_waits(engine.database, engine.catalog, 1)
    assert (first.run_id, first.node, first.kind, first.prompt) == (approval, "paid", "approval", "Ship it?")
    assert first.moves[0] == f"holdfast run approve {approval} paid" and first.deadline is not None
    assert (second.kind, second.event, second.key) == ("event", "payment", "monday 1")
    assert second.moves == [f"holdfast run signal payment --key 'monday 1' --run {event}"]
    [only] = await list_waits(engine.database, engine.catalog, 1, limit=1)
    assert only.task_id == first.task_id
    [rest] = await list_waits(engine.database, engine.catalog, 1, after=int(first.task_id))
    assert rest.run_id == event and not await list_waits(engine.database, engine.catalog, 2)
    for run in (approval, event):
        await harness.runs.cancel(run)


async def test_an_event_by_hand_tells_who_waited_and_leaves_its_row(harness, engine):
    one, two = await harness.runs.start(a_wait()), await harness.runs.start(a_wait())
    place = (engine.database, engine.catalog, 1, "payment", b"1")
    sent, _ = await send_by_hand(*place, run_id=int(two), actor="ada", reason="paid by phone")
    assert [(wait.run_id, wait.node) for wait in sent.waits] == [(two, "paid")]
    assert [(await harness.runs.nodes(run))["paid"] for run in (one, two)] == ["running", "completed"]
    [row] = await list_audit(engine.database, 1)
    assert (row.verb, row.subject_kind, row.subject_id, row.actor, row.reason, row.after["run"]) == (
        "run.signal", "event", "payment", "ada", "paid by phone", two,
    )  # fmt: skip
    await harness.runs.cancel(one)
    await finish(harness)


async def test_an_event_for_a_run_that_is_not_there_or_over_is_refused(harness, engine):
    run = await harness.runs.start(a_wait())
    await harness.runs.cancel(run)
    place = (engine.database, engine.catalog, 1)
    for number, kind, code in ((int(run), Conflict, "run_not_open"), (999, NotFound, None)):
        with pytest.raises(kind) as refused:
            await send_signal(*place, "payment", b"1", run_id=number)
        assert code is None or refused.value.code == code
    with pytest.raises(Invalid, match="holdfast run approve"):
        await send_signal(*place, f"approval:{run}:paid", b'{"approved": true}')
    assert await engine.database.fetchval("select count(*) from holdfast.signal") == 0
