"""Answers that are held back until there is work: who is woken, who is not, and what becomes of those who hang up."""

from __future__ import annotations

import asyncio
import time

import pytest

from holdfast.protocol.worker import Claim, Wait
from holdfast.server.worker_api.wait_registry import RUNNERS
from holdfast.settings.settings import Settings, WorkerSettings
from holdfast.store.statements import sql
from holdfast.testing.factories import a_task
from holdfast.wakeups.notifier import WAKE_CHANNEL
from holdfast.worker.transport.http_connection import HttpConnection, Server

LONG = 20.0


@pytest.fixture
def calls(call):
    """Connections that can be hung up."""
    made = []

    def make():
        made.append(HttpConnection(Server.of(call.url, Settings(env="local"))))
        return made[-1]

    yield make
    for one in made:
        one.drop()


@pytest.fixture
async def waiting(call, calls, here):
    """Claims that wait for an answer, each of a worker of its own."""
    tasks = []

    async def wait(count, *, actions=("shop.charge",), **fields):
        begun = []
        for _ in range(count):
            body = {"worker_id": "w", "actions": list(actions), "slots": 5}
            worker_id = (await call.post("/internal/workers", body)).json["worker_id"]
            claim = Claim(worker_id, wait_seconds=LONG, **fields)
            connection = calls()
            begun.append((asyncio.create_task(connection.post("/internal/task-claim", claim, dict)), connection))
        tasks.extend(task for task, _ in begun)
        await here(len(tasks))
        return begun

    yield wait
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def here(engine, eventually):
    """Wait until so many workers have asked for work."""

    async def wait(count):
        seen = "select count(*) >= $1 from holdfast.worker where beat_at > started_at"
        await eventually(lambda: engine.database.fetchval(seen, count))

    return wait


async def done_of(begun):
    done, _ = await asyncio.wait([task for task, _ in begun], return_when=asyncio.FIRST_COMPLETED, timeout=LONG)
    return [task.result()["tasks"] for task in done]


async def test_a_waiting_claim_is_answered_when_a_task_comes(waiting, harness):
    [(claim, _)] = await waiting(1)
    task = await harness.enqueue(a_task())
    [found] = (await asyncio.wait_for(claim, LONG))["tasks"]
    assert (found["task_id"], found["attempt"]) == (task.task_id, 1)


async def test_a_worker_is_told_how_long_it_may_wait_and_may(call, calls, harness):
    """Below the 60 s after which many proxies give up on an answer."""
    told = (await call.post("/internal/workers", {"actions": ["shop.charge"]})).json
    assert told["wait_seconds_max"] == (await call.get("/internal/terms")).json["wait_seconds_max"] < 60
    claim = Claim(told["worker_id"], wait_seconds=told["wait_seconds_max"])
    claiming = asyncio.create_task(calls().post("/internal/task-claim", claim, dict))
    task = await harness.enqueue(a_task())
    [found] = (await asyncio.wait_for(claiming, LONG))["tasks"]
    assert found["task_id"] == task.task_id


async def test_a_claim_that_waits_in_vain_is_answered_with_nothing(call, worker):
    answer = await call.post("/internal/task-claim", {"worker_id": worker, "limit": 1, "wait_seconds": 0.2})
    assert (answer.status, answer.json["tasks"]) == (200, [])


async def test_nobody_waits_for_ever(call, worker, subtests):
    for seconds in [51, -1, 1e9]:
        with subtests.test(seconds=seconds):
            for path in ("task-claim", "exchange", "wait"):
                answer = await call.post(
                    f"/internal/{path}", {"worker_id": worker, "limit": 1, "wait_seconds": seconds}
                )
                assert (answer.status, answer.json["code"]) == (400, "invalid_wait")


async def test_one_task_is_given_once_and_everybody_else_waits_on(waiting, harness):
    begun = await waiting(10)
    await harness.enqueue(a_task())
    assert [len(tasks) for tasks in await done_of(begun)] == [1]
    # Whoever was called beside the winner looked in vain by now, and waits again like the rest.
    await harness.enqueue_many(a_task(), [{"n": n} for n in range(9)])
    rest = [task for task, _ in begun if not task.done()]
    answers = await asyncio.wait_for(asyncio.gather(*rest), LONG)
    assert sorted(len(answer["tasks"]) for answer in answers) == [1] * 9


async def test_a_ring_calls_only_a_few(engine, eventually):
    from holdfast.engine.lifecycle.tasks.claim import WorkerIdentity
    from holdfast.server.worker_api.remote_workers import RemoteWorkers

    async with RemoteWorkers(engine) as workers:
        lane = await engine.catalog.lane_id(1, "default", "shop.charge")
        identity = WorkerIdentity(worker_id=1, actions=["shop.charge"], queues=None, lease_seconds=10.0)
        other = WorkerIdentity(worker_id=1, actions=["shop.refund"], queues=None, lease_seconds=10.0)
        group, elsewhere = workers.wait_registry.group(1, identity), workers.wait_registry.group(1, other)
        crowd = [
            asyncio.create_task(workers.wait_registry.wait(group, n, LONG, notification_count=0)) for n in range(50)
        ]
        stranger = asyncio.create_task(workers.wait_registry.wait(elsewhere, 99, LONG, notification_count=0))
        await eventually(lambda: len(group.waiting) == 50 and elsewhere.waiting)
        await engine.database.fetch("select pg_notify($1, $2)", WAKE_CHANNEL, f"1:{lane}")
        done, left = await asyncio.wait(crowd, return_when=asyncio.FIRST_COMPLETED)
        assert {task.result() for task in done} == {(lane,)}
        assert len(group.waiting) >= 50 - RUNNERS - 1 and not stranger.done()
        workers.wait_registry.looked(group, group.notification_count, is_more=True)
        await asyncio.sleep(0)
        assert sum(task.done() for task in crowd) >= 2 * RUNNERS
    assert all(task.done() for task in left) and stranger.done(), "closing sends everybody away"


async def test_a_ring_during_the_look_is_not_missed(engine, eventually):
    from holdfast.engine.lifecycle.tasks.claim import WorkerIdentity
    from holdfast.server.worker_api.remote_workers import RemoteWorkers

    async with RemoteWorkers(engine) as workers:
        lane = await engine.catalog.lane_id(1, "default", "shop.charge")
        identity = WorkerIdentity(worker_id=1, actions=["shop.charge"], queues=None, lease_seconds=10.0)
        group = workers.wait_registry.group(1, identity)
        await workers.wait_registry.open()
        before = group.notification_count
        await engine.database.fetch("select pg_notify($1, $2)", WAKE_CHANNEL, f"1:{lane}")
        await eventually(lambda: group.notification_count > before)
        assert await workers.wait_registry.wait(group, 1, LONG, notification_count=before) == ()


async def test_a_lost_ring_costs_a_poll(waiting, harness, engine):
    [(claim, _)] = await waiting(1)
    engine.notifier.notify = lambda **_: None
    await harness.enqueue(a_task())
    assert len((await asyncio.wait_for(claim, LONG))["tasks"]) == 1


async def test_who_hangs_up_is_given_nothing(waiting, harness, engine):
    [(claim, connection), *_] = await waiting(1)
    connection.drop()
    with pytest.raises(Exception, match="does not answer"):
        await claim
    await engine.database.fetchval("select 1")
    await harness.enqueue(a_task())
    [(other, _)] = await waiting(1)
    assert len((await asyncio.wait_for(other, LONG))["tasks"]) == 1


async def test_an_exchange_waits_too_and_settles_before_it_does(call, calls, worker, harness, engine, eventually):
    first = await harness.enqueue(a_task())
    [task] = (await call.post("/internal/exchange", {"worker_id": worker, "limit": 1})).json["tasks"]
    done = {name: task[name] for name in ("task_id", "attempt", "lease_token")} | {"status": "completed"}
    body = {"worker_id": worker, "completions": [done], "limit": 1, "wait_seconds": LONG}
    waiting = asyncio.create_task(calls().post("/internal/exchange", body, dict))
    await eventually(lambda: engine.database.fetchval("select count(*) = 0 from holdfast.live"))
    assert not waiting.done()
    second = await harness.enqueue(a_task())
    answer = await asyncio.wait_for(waiting, LONG)
    assert (answer["accepted"], [one["task_id"] for one in answer["tasks"]]) == (1, [second.task_id])
    assert first.task_id != second.task_id


async def test_beats_go_on_beside_a_waiting_exchange(call, calls, worker, harness, clock):
    await harness.enqueue(a_task())
    [task] = (await call.post("/internal/exchange", {"worker_id": worker, "limit": 1})).json["tasks"]
    body = {"worker_id": worker, "held": [task["task_id"]], "limit": 1, "wait_seconds": LONG}
    waiting = asyncio.create_task(calls().post("/internal/exchange", body, dict))
    pulse = {"worker_id": worker, "task_ids": [task["task_id"]], "lease_tokens": [task["lease_token"]]}
    for _ in range(3):
        await clock.advance(seconds=6)
        answer = await call.post("/internal/heartbeats", pulse)
        while answer.json["busy"]:
            # The exchange renews the same lease as it begins.
            answer = await call.post("/internal/heartbeats", pulse)
        assert (answer.json["renewed"], answer.json["worker_state"]) == ([task["task_id"]], "active")
    assert not waiting.done()
    await harness.enqueue(a_task())
    assert len((await asyncio.wait_for(waiting, LONG))["tasks"]) == 1


async def test_what_ended_and_is_not_settled_is_kept_without_waiting_for_it(call, worker, harness, engine, clock):
    for _ in range(2):
        await harness.enqueue(a_task())
    tasks = (await call.post("/internal/exchange", {"worker_id": worker, "limit": 2})).json["tasks"]
    numbers = [task["task_id"] for task in tasks]
    pulse = {"worker_id": worker, "ended_ids": numbers, "ended_tokens": [task["lease_token"] for task in tasks]}
    for _ in range(3):
        await clock.advance(seconds=6)
        answer = await call.post("/internal/heartbeats", pulse)
        assert (sorted(answer.json["kept"]), answer.json["renewed"]) == (numbers, [])
    async with engine.database.transaction() as settling:
        await settling.fetch(sql("lock_tasks"), [int(numbers[0])])
        assert (await call.post("/internal/heartbeats", pulse)).json["kept"] == numbers[1:]
    assert await harness.reap_once() == 0
    answer = await call.post("/internal/heartbeats", {**pulse, "ended_tokens": []})
    assert (answer.status, answer.json["code"]) == (400, "invalid_batch")


async def test_the_wait_route_says_that_there_is_work_and_takes_none(call, calls, worker, harness, here):
    waiting = asyncio.create_task(calls().post("/internal/wait", Wait(worker, wait_seconds=LONG), dict))
    await here(1)
    task = await harness.enqueue(a_task())
    assert (await asyncio.wait_for(waiting, LONG))["work"] is True
    assert (await harness.task(task.task_id)).state == "queued"
    assert (await call.post("/internal/wait", {"worker_id": worker, "wait_seconds": LONG})).json["work"] is True


async def test_a_draining_worker_is_told_and_does_not_wait(call, worker, engine):
    await engine.database.fetch("update holdfast.worker set state = 'draining'")
    began = time.monotonic()
    answer = (await call.post("/internal/wait", {"worker_id": worker, "wait_seconds": LONG})).json
    assert (answer, time.monotonic() - began < LONG) == ({"work": False, "draining": True, "stop": False}, True)
    body = {"worker_id": worker, "limit": 1, "wait_seconds": LONG}
    assert (await call.post("/internal/exchange", body)).json["draining"] is True


async def test_who_is_drained_while_it_waits_is_told_soon(call, calls, worker, engine, here, monkeypatch):
    monkeypatch.setattr("holdfast.server.worker_api.wait_registry.BEAT_SECONDS", 0.02)
    body = {"worker_id": worker, "limit": 1, "wait_seconds": LONG}
    waiting = [
        asyncio.create_task(calls().post("/internal/exchange", body, dict)),
        asyncio.create_task(calls().post("/internal/wait", Wait(worker, wait_seconds=LONG), dict)),
    ]
    await here(1)
    assert not any(one.done() for one in waiting)
    await engine.database.fetch("update holdfast.worker set state = 'draining'")
    answers = await asyncio.wait_for(asyncio.gather(*waiting), LONG / 2)
    assert [answer["draining"] for answer in answers] == [True, True]


async def test_a_beat_that_says_draining_ends_the_wait(call, calls, worker, engine, here):
    body = {"worker_id": worker, "limit": 1, "wait_seconds": LONG}
    waiting = asyncio.create_task(calls().post("/internal/exchange", body, dict))
    await here(1)
    await engine.database.fetch("update holdfast.worker set state = 'draining'")
    assert (await call.post("/internal/heartbeats", {"worker_id": worker})).json["worker_state"] == "draining"
    assert (await asyncio.wait_for(waiting, LONG / 4))["draining"] is True


class TestWithoutPolls:
    @pytest.fixture
    def holdfast_settings(self):
        return Settings(env="local", port=0, worker=WorkerSettings(poll_seconds=60.0))

    async def test_who_drains_leaves_its_turn_to_the_next(self, call, calls, harness, engine, eventually):
        waiting, asked = [], "select count(*) > $1 from holdfast.worker where beat_at > started_at"
        for number in range(RUNNERS + 2):
            body = {"worker_id": "w", "actions": ["shop.charge"], "slots": 5}
            worker_id = (await call.post("/internal/workers", body)).json["worker_id"]
            body = {"worker_id": worker_id, "limit": 1, "wait_seconds": LONG}
            waiting.append(asyncio.create_task(calls().post("/internal/exchange", body, dict)))
            await eventually(lambda number=number: engine.database.fetchval(asked, number))
        drain = "update holdfast.worker set state = 'draining' where worker_id < $1"
        await engine.database.fetch(drain, int(worker_id))
        task = await harness.enqueue(a_task())
        engine.notifier.notify(lanes=[await engine.catalog.lane_id(1, "default", "shop.charge")])
        answers = await asyncio.wait_for(asyncio.gather(*waiting), 2 * LONG)
        assert [answer["draining"] for answer in answers] == [True] * (RUNNERS + 1) + [False]
        assert [one["task_id"] for one in answers[-1]["tasks"]] == [task.task_id]


async def test_known_tokens_find_what_was_not_heard_of(call, worker, harness):
    await harness.enqueue_many(a_task(), [{"n": 1}, {"n": 2}])
    body = {"worker_id": worker, "held": None, "limit": 1}
    [first] = (await call.post("/internal/exchange", body)).json["tasks"]
    [second] = (await call.post("/internal/exchange", body)).json["tasks"]
    assert first["lease_expires_at"] is None, "left out for those who keep leases by heartbeats"
    known = {"worker_id": worker, "held": None, "known": [first["lease_token"]], "known_tasks": [first["task_id"]]}
    found = (await call.post("/internal/exchange", known)).json["tasks"]
    assert [one["task_id"] for one in found] == [second["task_id"]]


async def test_a_worker_that_left_frees_its_tasks_at_once(call, worker, harness):
    task = await harness.enqueue(a_task(max_losses=3))
    await call.post("/internal/exchange", {"worker_id": worker, "limit": 1})
    assert (await call.post("/internal/leave", {"worker_id": worker})).json == {"known": True}
    assert (await call.post("/internal/leave", {"worker_id": worker})).json == {"known": False}
    assert (await harness.task(task.task_id)).state != "running"
    answer = await call.post("/internal/exchange", {"worker_id": worker, "limit": 1})
    assert (answer.status, answer.json["code"]) == (409, "worker_not_registered")


async def test_several_calls_of_one_worker_look_each_for_itself(engine):
    """One that was given up and repeated may still be under way: what the other sees must not change under it."""
    from holdfast.core.identity.access import ANY_WORKER
    from holdfast.server.worker_api.remote_workers import RemoteWorkers

    workers = RemoteWorkers(engine)
    worker_id = await workers.register(name="w", actions=["shop.charge"], queues=None, slots=5, version="", labels="{}")
    async with engine.database.session() as session:
        worker_session = await workers.worker_sessions.find(session, worker_id, None, ANY_WORKER)
        with worker_session.claiming() as one, worker_session.claiming() as other:
            assert one is not other
        again = await workers.worker_sessions.find(session, worker_id, None, ANY_WORKER)
        with again.claiming() as known:
            assert known in (one, other), "what a call learned of lanes is there for the next one"
