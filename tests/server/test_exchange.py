"""The exchange over HTTP: settle, renew and claim in one call."""

from __future__ import annotations

from tests.server.leases import claimed, lease_of

from holdfast.core.tasks.states import TaskState
from holdfast.testing.factories import a_task


async def test_an_exchange_settles_renews_and_claims_at_once(call, worker, harness, clock):
    await harness.enqueue_many(a_task(), [{"n": n} for n in range(5)])
    first = (await call.post("/internal/exchange", {"worker_id": worker, "limit": 2})).json
    done, held = first["tasks"]
    await clock.advance(seconds=5)
    body = {
        "worker_id": worker,
        "held": [held["task_id"], "999"],
        "completions": [
            lease_of(done, status="completed", outputs=1),
            lease_of(done, attempt=9, status="failed"),
        ],
        "limit": 2,
    }
    answer = (await call.post("/internal/exchange", body)).json
    assert (answer["accepted"], len(answer["tasks"]), answer["lost"], answer["canceled"]) == (1, 2, ["999"], [])
    assert [(one["task_id"], one["attempt"]) for one in answer["refused"]] == [(done["task_id"], 9)]
    await clock.advance(seconds=7)
    assert (await call.post("/internal/heartbeat", lease_of(held))).status == 200


async def test_an_answer_that_got_lost_is_given_again(call, worker, harness):
    await harness.enqueue(a_task())
    first = (await call.post("/internal/exchange", {"worker_id": worker, "limit": 1})).json["tasks"]
    again = (await call.post("/internal/exchange", {"worker_id": worker, "limit": 1})).json["tasks"]
    assert [lease_of(one) for one in again] == [lease_of(one) for one in first]
    named = {"worker_id": worker, "held": [first[0]["task_id"]], "limit": 1}
    assert (await call.post("/internal/exchange", named)).json["tasks"] == []


async def test_another_workers_tasks_are_neither_renewed_nor_found(call, worker, harness):
    await harness.enqueue(a_task())
    lease = await harness.claim_one(worker="first")
    answer = (await call.post("/internal/exchange", {"worker_id": worker, "held": [lease.task_id], "limit": 5})).json
    assert (answer["lost"], answer["tasks"]) == ([lease.task_id], [])


async def test_a_canceled_task_is_told_in_an_exchange(call, worker, harness):
    await harness.enqueue(a_task())
    [task] = await claimed(call, worker)
    await harness.cancel(task["task_id"])
    body = {"worker_id": worker, "held": [task["task_id"]]}
    assert (await call.post("/internal/exchange", body)).json["canceled"] == [task["task_id"]]
    body = {"worker_id": worker, "completions": [lease_of(task, status="canceled")]}
    assert (await call.post("/internal/exchange", body)).json["accepted"] == 1
    assert (await harness.task(task["task_id"])).state is TaskState.CANCELED


async def test_a_task_handed_back_costs_nothing(call, worker, harness):
    await harness.enqueue(a_task())
    [task] = await claimed(call, worker)
    assert (await call.post("/internal/task-complete", lease_of(task, status="released"))).status == 200
    again = await harness.task(task["task_id"])
    assert (again.state, again.retry_count) == (TaskState.QUEUED, 0)


async def test_only_the_queues_asked_for_are_served(call, worker, harness):
    await harness.enqueue(a_task(queue="mail"))
    assert await claimed(call, worker, queues=["other"]) == []
    assert len(await claimed(call, worker, queues=["mail"])) == 1


async def test_nodes_get_their_inputs_and_release_what_follows(call, worker, harness):
    from tests.core.flows import a_node, an_edge

    from holdfast.core.flows.graph import FlowDefinition

    nodes = (a_node("first", action="shop.charge"), a_node("second", action="shop.charge"))
    flow = FlowDefinition(name="shop.two", nodes=nodes, edges=(an_edge("first>second", "rows>orders"),)).validated()
    run = await harness.runs.start(flow)
    [first] = await claimed(call, worker)
    assert (first["run_id"], first["input"]) == (run, {})
    await call.post("/internal/task-complete", lease_of(first, status="completed", outputs={"rows": [1, 2]}))
    [second] = await claimed(call, worker)
    assert second["input"] == {"orders": [1, 2]}
    await call.post("/internal/task-complete", lease_of(second, status="completed"))
    assert await harness.runs.state(run) == "completed"


async def test_a_node_without_its_input_fails_and_is_not_handed_out(call, worker, harness):
    from tests.core.flows import a_node, an_edge

    from holdfast.core.flows.graph import FlowDefinition

    nodes = (a_node("first", action="shop.charge"), a_node("second", action="shop.charge"))
    flow = FlowDefinition(name="shop.two", nodes=nodes, edges=(an_edge("first>second", "rows>orders"),)).validated()
    run = await harness.runs.start(flow)
    [first] = await claimed(call, worker)
    await call.post("/internal/task-complete", lease_of(first, status="completed", outputs={"other": 1}))
    assert await claimed(call, worker) == []
    assert await harness.runs.nodes(run) == {"first": "completed", "second": "failed"}
    assert await harness.runs.state(run) == "failed"
