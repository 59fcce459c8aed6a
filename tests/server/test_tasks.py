"""Tasks and events over HTTP, as operators and programs see them."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.engine.test_observe import until_settled

from holdfast.core.tasks.outcome import Failed
from holdfast.engine.audit import list_audit
from holdfast.testing.factories import a_completed_task, a_failed_task, a_failure, a_running_task, a_task


async def test_a_task_is_shown_in_full(call, harness):
    task_id = await a_failed_task(harness, input={"order": 7})
    body = (await call.get(f"/api/v1/tasks/{task_id}")).json
    assert (body["task_id"], body["state"], body["input"]) == (task_id, "failed", {"order": 7})
    assert [one["state"] for one in body["attempts"]] == ["failed"]


async def test_an_unknown_task_is_not_found(call, subtests):
    for task_id in ["999", "abc", "1" * 30, "-1"]:
        for rest in ["", "/why", "/retry", "/cancel"]:
            with subtests.test(task_id=task_id, rest=rest):
                method = "POST" if rest in ("/retry", "/cancel") else "GET"
                answer = await call(method, f"/api/v1/tasks/{task_id}{rest}")
                assert (answer.status, answer.json["category"]) == (404, "not_found")


async def test_pages_follow_one_another_without_overlap(call, harness):
    tasks = [task.task_id for task in await harness.enqueue_many(a_task(), [{}] * 5)]
    seen, path = [], "/api/v1/tasks?limit=2"
    while path:
        body = (await call.get(path)).json
        seen += [row["task_id"] for row in body["tasks"]]
        path = body["next"] and f"/api/v1/tasks?limit=2&before={body['next']}"
    assert seen == sorted(tasks, key=int, reverse=True)


async def test_a_page_holds_a_hundred_rows_whatever_was_asked_for(call, harness):
    await harness.enqueue_many(a_task(max_retries=0), [{}] * 101)
    for lease in await harness.claim(101):
        await harness.settle(lease, Failed(a_failure()))
    for path in ("/api/v1/tasks", "/api/v1/dead/letters"):
        pages, following = [], ""
        while following is not None:
            body = (await call.get(f"{path}?limit=500{following and f'&before={following}'}")).json
            pages.append([row["task_id"] for row in body[path.rpartition("/")[2]]])
            following = body["next"]
        assert len(pages[0]) == 100 and len({one for page in pages for one in page}) == sum(map(len, pages)) == 101


async def test_lists_are_filtered(call, harness):
    await a_failed_task(harness, queue="mail", tags=("red",))
    await harness.enqueue(a_task(queue="mail"))
    await a_completed_task(harness)

    async def count(query):
        return len((await call.get(f"/api/v1/tasks?{query}")).json["tasks"])

    assert [await count(one) for one in ("state=failed", "state=failed,queued", "state=failed&state=queued")] == [
        1,
        2,
        2,
    ]
    assert [await count(one) for one in ("queue=mail", "action=shop.charge", "tag=red", "queue=none")] == [2, 3, 1, 0]


async def test_a_bad_query_is_refused(call, subtests):
    for query in ["state=odd", "limit=0", "limit=x", "limit=100000", "colour=red"]:
        with subtests.test(query=query):
            assert (await call.get(f"/api/v1/tasks?{query}")).status == 400


async def test_why_answers_the_same_as_everywhere(call, harness):
    task_id = await a_failed_task(harness)
    body = (await call.get(f"/api/v1/tasks/{task_id}/why")).json
    assert body["task_id"] == task_id and body["state"] == "failed" and body["headline"]


async def test_a_retry_is_accepted_with_its_attempt_and_audited(call, harness, engine):
    lease = await a_running_task(harness)
    await harness.settle(lease, Failed(a_failure("validation: no such order")))
    task_id = lease.task_id
    answer = await call.post(f"/api/v1/tasks/{task_id}/retry", {"reason": "smtp is back"})
    assert (answer.status, answer.json) == (202, {"task_id": task_id, "attempt": 2, "status": "queued"})
    again = await call.post(f"/api/v1/tasks/{task_id}/retry")
    assert (again.status, again.json["code"]) == (409, "execution_not_retryable")
    assert again.json["detail"] == "cannot retry execution in status 'queued'"
    (row,) = await list_audit(engine.database, 1)
    assert (row.actor, row.verb, row.reason) == ("dev:anna", "task.retry", "smtp is back")


async def test_a_retry_of_a_spent_budget_names_the_dead_letter(call, harness):
    task_id = await a_failed_task(harness)
    [letter] = await harness.letters(task_id)
    answer = await call.post(f"/api/v1/tasks/{task_id}/retry")
    assert (answer.status, answer.json["code"]) == (409, "retry_budget_exhausted")
    assert (answer.json["detail"], answer.json["dead_letter_id"]) == ("retry budget exhausted", letter.dead_letter_id)


async def test_a_cancel_ends_or_asks_and_a_second_one_conflicts(call, harness, engine):
    queued, running = await harness.enqueue(a_task()), await a_running_task(harness)
    for task_id, state in ((queued.task_id, "canceled"), (running.task_id, "canceling")):
        answer = await call.post(f"/api/v1/tasks/{task_id}/cancel", {"reason": "ordered twice"})
        assert (answer.status, answer.json) == (202, {"task_id": task_id, "state": state})
    answer = await call.post(f"/api/v1/tasks/{queued.task_id}/cancel")
    assert (answer.status, answer.json["code"], answer.json["state"]) == (409, "task_over", "canceled")
    assert {row.actor for row in await list_audit(engine.database, 1)} == {"dev:anna"}


async def test_a_reason_nobody_could_read_changes_nothing(call, harness):
    task = await harness.enqueue(a_task())
    answer = await call.post(f"/api/v1/tasks/{task.task_id}/cancel", {"reason": "x" * 2000})
    assert (answer.status, answer.json["code"]) == (400, "invalid_reason")
    assert (await harness.task(task.task_id)).state == "queued"


class Stream:
    """One reader of the events."""

    def __init__(self, call, path="/api/v1/events?after=0:0", **headers):
        self._connection = call.open()
        self._connection.request("GET", path, headers={**call.headers, **headers})
        self.response = self._connection.getresponse()

    async def take(self, count):
        return await asyncio.to_thread(lambda: [self._next() for _ in range(count)])

    def _next(self):
        event = {}
        while True:
            line = self.response.readline().decode().rstrip("\n")
            name, _, value = line.partition(": ")
            if not line and "id" in event:
                return event
            if name:
                event[name] = value

    def close(self):
        self._connection.close()


async def a_stream(call, *arguments, **headers):
    return await asyncio.to_thread(lambda: Stream(call, *arguments, **headers))


@pytest.fixture
async def history(harness):
    """Two tasks started in one batch and completed one by one: four events in three batches."""
    await harness.enqueue_many(a_task(), [{}] * 2)
    from holdfast.core.tasks.outcome import Completed

    for lease in await harness.claim(2):
        await harness.settle(lease, Completed(b"null"))
    await until_settled(harness)


async def test_events_are_streamed_in_order_with_their_ids(call, history):
    reader = await a_stream(call)
    found = await reader.take(4)
    reader.close()
    assert [event["event"] for event in found] == ["task.started"] * 2 + ["task.completed"] * 2
    assert len({event["id"] for event in found}) == 4
    told = json.loads(found[0]["data"])
    assert {"at", "kind", "task_id", "attempt", "action", "queue", "run_id", "detail"} == told.keys()
    assert (told["action"], told["queue"], told["run_id"]) == ("shop.charge", "default", None)
    assert reader.response.headers["content-type"].startswith("text/event-stream")


async def test_a_reader_resumes_behind_any_single_event(call, history, subtests):
    for seen in [1, 2, 3]:
        with subtests.test(seen=seen):
            reader = await a_stream(call)
            everything = await reader.take(4)
            reader.close()
            again = await a_stream(call, "/api/v1/events", **{"Last-Event-ID": everything[seen - 1]["id"]})
            assert await again.take(4 - seen) == everything[seen:]
            again.close()


async def test_without_a_cursor_only_what_comes_is_told(call, history, harness):
    reader = await a_stream(call, "/api/v1/events")
    task = await harness.enqueue(a_task())
    await harness.claim_one()
    [event] = await reader.take(1)
    reader.close()
    assert json.loads(event["data"])["task_id"] == task.task_id


ABOUT_NO_TASK = """
    insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
    select 1, 'queue.paused', '{}', '{}', jsonb_build_object('queue', 'mail') from generate_series(1, 250)
"""


@pytest.mark.parametrize("after", ["?after=0:0", ""])
async def test_events_about_no_task_are_told_and_do_not_hold_up_the_stream(call, engine, harness, after):
    reader = await a_stream(call, f"/api/v1/events{after}")
    await engine.database.fetch(ABOUT_NO_TASK)
    lease = await a_running_task(harness)
    *others, last = await reader.take(251)
    reader.close()
    assert json.loads(last["data"])["task_id"] == lease.task_id
    told = json.loads(others[0]["data"])
    assert (told["kind"], told["task_id"], told["attempt"]) == ("queue.paused", None, None)
    assert told["detail"] == {"queue": "mail"} and len({one["id"] for one in others}) == 250


async def test_a_bad_cursor_is_refused(call, subtests):
    for cursor in ["x", "1", "1:2:3:4", "1:x", "99999999999999999999999:1"]:
        with subtests.test(cursor=cursor):
            answer = await call.get("/api/v1/events", last_event_id=cursor)
            assert (answer.status, answer.json["code"]) == (400, "invalid_cursor")


async def test_open_streams_end_with_the_server(engine):
    from tests.server.conftest import Caller

    from holdfast.server.app import serving

    async with serving(engine) as url:
        reader = await a_stream(Caller(url))
    assert await asyncio.to_thread(reader.response.read) is not None
    reader.close()
