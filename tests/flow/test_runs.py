"""Runs: what goes when, how they end, how they are held, stopped and run again."""

from __future__ import annotations

import pytest
from tests.core.flows import a_diamond, a_flow, a_node, an_edge, an_order_edge

from holdfast import wire
from holdfast.core.condition import Condition, Operator
from holdfast.core.graph import FlowDefinition
from holdfast.core.nodes import RUN_INPUT, RUN_OUTPUT, Edge, FlowInput, Node, NodeKind, TriggerRule
from holdfast.core.outcome import Completed, Failed
from holdfast.core.ports import Port
from holdfast.dispatcher.dead_look import dead_groups, list_letters
from holdfast.dispatcher.look import show_task
from holdfast.dispatcher.recover import redrive_group
from holdfast.dispatcher.replay import capture
from holdfast.dispatcher.verify import verify
from holdfast.errors import Conflict, NotFound
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.testing.factories import a_failure


async def step(dispatcher, *, fail=(), outputs=None) -> list[str]:
    """Claim everything that can be claimed, and end it; answers the actions' inputs in order."""
    leases = await dispatcher.claim(100)
    for lease in leases:
        node = (lease.claimed.run_id, lease.claimed.node_no)
        if lease.claimed.fault is not None:
            await dispatcher.settle(lease, Failed(lease.claimed.fault))
        elif lease.claimed.node_no in fail:
            await dispatcher.settle(lease, Failed(a_failure()))
        else:
            value = (outputs or {}).get(node[1])
            await dispatcher.settle(lease, Completed(wire.encode(value, bytes_max=10**8, what="output")))
    return [wire.decode(lease.claimed.input) for lease in leases]


async def finish(dispatcher, **options) -> int:
    """Step until nothing is left to claim; answers how many steps it took."""
    steps = 0
    while await step(dispatcher, **options):
        steps += 1
    return steps


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


def a_choice(operator=Operator.GREATER, value=3):
    """`big` runs only if the number is large; `after` needs it, `anyway` does not."""
    condition = Condition(upstream="count", output_key="n", operator=operator, value=value)
    nodes = (a_node("count"), a_node("big", condition=condition), a_node("after"))
    anyway = a_node("anyway", trigger_rule=TriggerRule.ALL_DONE)
    edges = map(an_order_edge, ("count>big", "big>after", "big>anyway"))
    return FlowDefinition(name="shop.choice", nodes=(*nodes, anyway), edges=tuple(edges)).validated()


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


def a_sum(parts=3):
    """A number, as many parts of it, and their sum."""
    names = [f"part{number}" for number in range(parts)]
    nodes = [a_node("number"), *(a_node(name, config={"i": i}) for i, name in enumerate(names))]
    nodes.append(a_node("sum", inputs=(Port(key="values", is_list=True),)))
    edges = [an_edge(f"{RUN_INPUT}>number", "x>x"), *(an_edge(f"number>{name}", "v>v") for name in names)]
    edges += [an_edge(f"{name}>sum", "v>values") for name in names]
    edges.append(Edge(upstream="sum", downstream=RUN_OUTPUT, bindings=an_edge("a>b", ">sum").bindings))
    return FlowDefinition(
        name="shop.sum", nodes=tuple(nodes), edges=tuple(edges), inputs=(FlowInput(name="x"),)
    ).validated()


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
            assert await dispatcher.runs.output(run) == {}


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


def a_map(concurrency=None):
    """A list, each member of it doubled, and the list of the results."""
    nodes = (
        a_node("list"),
        a_node("double", kind=NodeKind.MAP, map_over="x", concurrency=concurrency, config={"by": 2}),
        a_node("gather"),
    )
    edges = (an_edge("list>double", "all>x"), an_edge("double>gather", ">results"))
    return FlowDefinition(name="shop.map", nodes=nodes, edges=edges).validated()


async def test_a_map_runs_once_per_member_and_gathers_in_order(dispatcher):
    run = await dispatcher.runs.start(a_map())
    await step(dispatcher, outputs={0: {"all": [5, 6, 7]}})
    leases = await dispatcher.claim(10)
    assert [wire.decode(lease.claimed.input) for lease in leases] == [{"by": 2, "x": x} for x in (5, 6, 7)]
    for lease in reversed(leases):
        given = wire.decode(lease.claimed.input)
        await dispatcher.settle(lease, Completed(wire.encode(given["x"] * 2, bytes_max=99, what="output")))
    assert await step(dispatcher) == [{"results": [10, 12, 14]}]
    assert await dispatcher.runs.state(run) == "completed"


async def test_a_map_over_nothing_completes_with_nothing(dispatcher):
    run = await dispatcher.runs.start(a_map())
    await step(dispatcher, outputs={0: {"all": []}})
    assert await step(dispatcher) == [{"results": []}]
    assert await dispatcher.runs.state(run) == "completed"


async def test_a_map_over_no_list_fails_with_its_code(dispatcher):
    run = await dispatcher.runs.start(a_map())
    await finish(dispatcher, outputs={0: {"all": 7}})
    assert await dispatcher.runs.nodes(run) == {"list": "completed", "double": "failed", "gather": "upstream_failed"}
    rows = await dispatcher.engine.database.fetch("select code from holdfast.failure")
    assert [row["code"] for row in rows] == ["DAG_VALIDATION_MAP_LIST_INVALID"]


async def test_a_map_with_a_limit_runs_that_many_members_at_once(dispatcher):
    run = await dispatcher.runs.start(a_map(concurrency=2))
    await step(dispatcher, outputs={0: {"all": [1, 2, 3, 4, 5]}})
    assert [len(await step(dispatcher, outputs={1: 0})) for _ in range(4)] == [2, 2, 1, 1]
    assert await dispatcher.runs.state(run) == "completed"


async def test_a_failed_member_fails_the_map_and_only_it_runs_again(dispatcher):
    run = await dispatcher.runs.start(a_map())
    await step(dispatcher, outputs={0: {"all": [1, 2, 3]}})
    first, second, third = await dispatcher.claim(10)
    await dispatcher.settle(first, Completed(b"1"))
    await dispatcher.settle(second, Failed(a_failure()))
    assert (await dispatcher.runs.nodes(run))["double"] == "running"
    await dispatcher.settle(third, Completed(b"3"))
    assert (await dispatcher.runs.nodes(run))["double"] == "failed"
    await dispatcher.runs.retry(run)
    [again] = await dispatcher.claim(10)
    assert (again.task_id, again.attempt) == (second.task_id, 2)
    await dispatcher.settle(again, Completed(b"2"))
    assert await step(dispatcher) == [{"results": [1, 2, 3]}]
    assert await dispatcher.runs.state(run) == "completed"


async def ended_items(dispatcher, run, *outcomes):
    """Let the list and the members of a map end, and say which tasks the members were."""
    await step(dispatcher, outputs={0: {"all": list(range(len(outcomes)))}})
    leases = await dispatcher.claim(10)
    for lease, outcome in zip(leases, outcomes, strict=True):
        await dispatcher.settle(lease, outcome)
    return [int(lease.task_id) for lease in leases]


async def test_members_that_a_re_drive_upstream_replaces_keep_their_place(dispatcher):
    run = await dispatcher.runs.start(a_map())
    old = await ended_items(dispatcher, run, Completed(b"1"), Completed(b"2"), Failed(a_failure()))
    await dispatcher.runs.retry(run, only="list")
    new = await ended_items(dispatcher, run, Completed(b"7"))
    assert await step(dispatcher) == [{"results": [7]}]
    assert await dispatcher.runs.state(run) == "completed"
    database, catalog = dispatcher.engine.database, dispatcher.engine.catalog
    assert (await verify(database)).is_sound
    shown = [await show_task(database, catalog, DEFAULT_TENANT_ID, task_id) for task_id in (*old, *new)]
    assert [(one.state, one.generation, one.node, one.item, one.run_id) for one in shown] == [
        ("completed", 1, "double", 0, run),
        ("completed", 1, "double", 1, run),
        ("failed", 1, "double", 2, run),
        ("completed", 2, "double", 0, run),
    ]
    assert [bytes(one.input) for one in shown] == [b"null"] * 3 + [b'{"by":2,"x":0}']
    listed = await database.fetch("select task_id, node_no from holdfast.tasks where state = 'completed'")
    assert {(str(one), 1) for one in (*old[:2], *new)} <= {tuple(row) for row in listed}


async def test_the_letter_of_a_member_that_was_replaced_is_resolved_when_its_node_completed(dispatcher):
    run = await dispatcher.runs.start(a_map())
    await ended_items(dispatcher, run, Failed(a_failure()))
    engine = dispatcher.engine
    [group] = await dead_groups(engine.database, DEFAULT_TENANT_ID)
    await dispatcher.runs.retry(run, only="list")
    await ended_items(dispatcher, run, Completed(b"7"))
    await redrive_group(engine, DEFAULT_TENANT_ID, group.fingerprint, actor="anna", reason="gone")
    assert await dispatcher.sweep_once() == 1
    assert [one.state for one in await list_letters(engine.database, DEFAULT_TENANT_ID)] == ["resolved"]
    assert await dead_groups(engine.database, DEFAULT_TENANT_ID) == []


async def test_what_is_under_way_behind_a_node_that_runs_again_is_let_go_once(dispatcher):
    nodes = (a_node("a"), a_node("b", trigger_rule=TriggerRule.ALL_DONE))
    run = await dispatcher.runs.start(FlowDefinition(name="shop.x", nodes=nodes, edges=(an_order_edge("a>b"),)))
    await step(dispatcher, fail=[0])
    behind = await dispatcher.claim_one()
    assert await dispatcher.runs.retry(run) == ["a"]
    await step(dispatcher)
    assert await dispatcher.runs.nodes(run) == {"a": "completed", "b": "running"}
    await dispatcher.settle(behind, Completed(b"1"))
    assert (await dispatcher.runs.state(run), await dispatcher.claim(10)) == ("completed", [])


async def test_a_node_whose_output_is_in_use_is_not_run_again(dispatcher):
    run = await dispatcher.runs.start(a_flow("a>b b>c"))
    await step(dispatcher)
    with pytest.raises(Conflict, match="b is under way"):
        await dispatcher.runs.retry(run, only="a")
    await finish(dispatcher)
    assert await dispatcher.runs.retry(run, only="a") == ["a", "b", "c"]
    await dispatcher.runs.cancel(run)


async def test_a_member_that_was_replaced_cannot_be_replayed_with_anothers_input(dispatcher):
    run = await dispatcher.runs.start(a_map())
    [old] = await ended_items(dispatcher, run, Completed(b"1"))
    await step(dispatcher)
    await dispatcher.runs.retry(run, only="list")
    await ended_items(dispatcher, run, Completed(b"7"))
    with pytest.raises(Conflict, match="run again with other items"):
        await capture(dispatcher.engine.database, dispatcher.engine.catalog, DEFAULT_TENANT_ID, old)


async def test_members_that_run_again_are_no_past_ones(dispatcher):
    run = await dispatcher.runs.start(a_map())
    await ended_items(dispatcher, run, Completed(b"1"), Failed(a_failure()))
    await dispatcher.runs.retry(run)
    assert await dispatcher.engine.database.fetchval("select count(*) from holdfast.past_items") == 0
    await dispatcher.runs.cancel(run)


async def test_canceling_a_run_cancels_its_members_also_those_not_released(dispatcher):
    run = await dispatcher.runs.start(a_map(concurrency=1))
    await step(dispatcher, outputs={0: {"all": [1, 2, 3]}})
    await dispatcher.runs.cancel(run)
    assert await dispatcher.runs.state(run) == "canceled"
    assert not await dispatcher.claim(10)


def a_parent():
    """A flow that runs another and uses what it returns."""
    nodes = (a_node("inner", action="shop.sum", kind=NodeKind.FLOW, config={"x": 3}), a_node("after"))
    return FlowDefinition(name="shop.parent", nodes=nodes, edges=(an_edge("inner>after", "sum>total"),)).validated()


async def test_a_node_can_be_a_run_of_another_flow(dispatcher):
    await dispatcher.runs.snapshot(a_sum(1))
    run = await dispatcher.runs.start(a_parent())
    assert await step(dispatcher, outputs={0: {"v": 1}}) == [{"x": 3}]
    await step(dispatcher, outputs={1: {"v": 1}})
    await step(dispatcher, outputs={2: 42})
    assert await step(dispatcher) == [{"total": 42}]
    assert await dispatcher.runs.state(run) == "completed"


async def test_a_run_that_fails_fails_the_node_that_waits_for_it(dispatcher):
    await dispatcher.runs.snapshot(a_sum(1))
    run = await dispatcher.runs.start(a_parent())
    await finish(dispatcher, outputs={0: {"v": 1}}, fail=[1])
    assert await dispatcher.runs.nodes(run) == {"inner": "failed", "after": "upstream_failed"}
    await dispatcher.runs.retry(run)
    await finish(dispatcher, outputs={0: {"v": 1}, 1: {"v": 1}, 2: 1})
    assert await dispatcher.runs.state(run) == "completed"


async def test_canceling_a_run_cancels_the_runs_it_started(dispatcher):
    await dispatcher.runs.snapshot(a_sum(1))
    run = await dispatcher.runs.start(a_parent())
    await dispatcher.runs.cancel(run)
    assert await dispatcher.runs.state(run) == "open"
    await dispatcher.runs.repair_once()
    assert await dispatcher.runs.state(run) == "canceled"
    assert not await dispatcher.claim(10)


async def test_input_that_a_flow_does_not_take_fails_the_node(dispatcher):
    await dispatcher.runs.snapshot(a_sum(1))
    flow = FlowDefinition(
        name="shop.odd", nodes=(a_node("inner", action="shop.sum", kind=NodeKind.FLOW, config={"y": 1}),)
    )
    run = await dispatcher.runs.start(flow)
    assert await dispatcher.runs.state(run) == "failed"


def a_wait(**fields):
    nodes = (
        Node(name="paid", action="payment", kind=NodeKind.WAIT, **fields),
        a_node("ship"),
    )
    return FlowDefinition(name="shop.wait", nodes=nodes, edges=(an_edge("paid>ship", ">payment"),)).validated()


async def test_a_node_waits_for_an_event_and_returns_its_payload(dispatcher):
    run = await dispatcher.runs.start(a_wait())
    assert not await dispatcher.claim(10)
    await dispatcher.runs.signal("payment", {"amount": 5})
    assert await step(dispatcher) == [{"payment": {"amount": 5}}]
    assert await dispatcher.runs.state(run) == "completed"


async def test_an_event_that_came_before_the_wait_is_not_lost_and_not_used_twice(dispatcher):
    nodes = (a_node("first"), *(Node(name=name, action="tick", kind=NodeKind.WAIT) for name in ("one", "two")))
    edges = (an_order_edge("first>one"), an_order_edge("one>two"))
    run = await dispatcher.runs.start(FlowDefinition(name="shop.ticks", nodes=nodes, edges=edges))
    await dispatcher.runs.signal("tick", 1)
    await step(dispatcher)
    assert await dispatcher.runs.nodes(run) == {"first": "completed", "one": "completed", "two": "running"}
    await dispatcher.runs.signal("tick", 2, run_id=run)
    assert await dispatcher.runs.state(run) == "completed"


async def test_an_event_for_another_run_or_of_before_answers_nothing(dispatcher, clock):
    await dispatcher.runs.signal("payment", 1)
    await clock.advance(1)
    other, run = await dispatcher.runs.start(a_wait()), await dispatcher.runs.start(a_wait())
    await dispatcher.runs.signal("payment", 1, run_id=other)
    assert (await dispatcher.runs.nodes(run))["paid"] == "running"
    assert (await dispatcher.runs.nodes(other))["paid"] == "completed"
    await dispatcher.runs.cancel(run)
    assert await dispatcher.runs.state(run) == "canceled"
    await finish(dispatcher)


@pytest.mark.parametrize(("on_timeout", "paid"), [(None, "failed"), ("skip", "skipped")])
async def test_a_wait_ends_at_its_deadline(dispatcher, clock, on_timeout, paid):
    config = {"on_timeout": on_timeout} if on_timeout else {}
    run = await dispatcher.runs.start(a_wait(timeout_seconds=60, config=config))
    await clock.advance(59)
    await dispatcher.runs.repair_once()
    assert (await dispatcher.runs.nodes(run))["paid"] == "running"
    await clock.advance(2)
    await dispatcher.runs.repair_once()
    assert (await dispatcher.runs.nodes(run))["paid"] == paid
    assert await dispatcher.runs.state(run) == ("failed" if paid == "failed" else "completed")


@pytest.mark.parametrize(("approved", "state"), [(True, "open"), (False, "failed")])
async def test_an_approval_is_given_or_refused_by_somebody(dispatcher, approved, state):
    run = await dispatcher.runs.start(a_wait(config={"approval": True}))
    await dispatcher.runs.answer(run, "paid", is_given=approved, reason="no", actor="ada")
    assert await dispatcher.runs.state(run) == state
    if not approved:
        [row] = await dispatcher.engine.database.fetch("select code, message from holdfast.failure")
        assert tuple(row) == ("approval_rejected", "ada rejected paid: no.")
    await finish(dispatcher)


async def test_runs_of_thousands_start_in_one_call(dispatcher):
    runs = await dispatcher.runs.start_many(a_sum(), [{"x": i} for i in range(2_000)])
    assert len(set(runs)) == 2_000
    assert [given["x"] for given in await step(dispatcher, outputs={0: {"v": 1}})] == list(range(100))
