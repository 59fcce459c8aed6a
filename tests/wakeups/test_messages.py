"""SQS and Redis one message at a time: hidden, extended, left and deleted, and what a worker makes of each kind."""

from __future__ import annotations

import pytest
from tests.waiting import eventually

from holdfast.core.tasks.outcome import Completed
from holdfast.core.wakeups.hint import Hint, Reader, read_hint
from holdfast.engine.wakeups.outbox import write_hints
from holdfast.engine.wakeups.relay import Relay
from holdfast.errors import Invalid, NotFound, Unavailable
from holdfast.settings.settings import Settings, WakeSettings
from holdfast.testing.factories import (
    ACTION,
    a_canceled_task,
    a_completed_task,
    a_retrying_task,
    a_running_task,
    a_task,
)
from holdfast.wakeups.carriers import require_carrier
from holdfast.wakeups.consumer import Consumer

pytestmark = pytest.mark.xdist_group("carriers")

MALFORMED = ("{", "[]", '{"task_id": "x"}', '{"attempt": 1}')


def consumer_of(transport, engine, worker_id: int, looked: list[int]) -> Consumer:
    reader = Reader(worker_id=worker_id, tenant_id=engine.tenant_id, actions={ACTION}, queues=None)
    return Consumer(transport, engine.database, reader, look=looked.extend, free=lambda: 10, visibility_seconds=0.001)


async def received(transport, count: int):
    """Wait for that many messages."""
    found: list = []

    async def is_enough():
        found.extend(await transport.receive(10, wait_seconds=1))
        return len(found) >= count

    await eventually(is_enough)
    assert len(found) == count
    return found


async def test_what_is_published_arrives_once_and_ends_when_it_is_done(transport, queue):
    hints = [Hint(task_id=number, attempt=2, action=ACTION) for number in range(1, 24)]
    await transport.publish(hints)
    assert queue.left() == 23
    found = await received(transport, 23)
    assert sorted(read_hint(one.body).task_id for one in found) == list(range(1, 24))
    assert {read_hint(one.body).attempt for one in found} == {2}
    await transport.done(found)
    assert queue.left() == 0


async def test_a_message_that_is_left_comes_again(transport, queue):
    await transport.publish([Hint(task_id=1), Hint(task_id=2)])
    first = await received(transport, 2)
    kept = first[0]

    async def next_one():
        await transport.extend([kept])
        return await transport.receive(10, wait_seconds=0)

    again = await eventually(next_one)
    assert [read_hint(one.body) for one in again] == [read_hint(first[1].body)]
    await transport.done([*first, *again])
    assert queue.left() == 0


async def test_a_carrier_that_is_away_says_so(transport, queue, monkeypatch):
    await transport.publish([Hint(task_id=1)])
    assert "1 messages" in await transport.check()
    await queue.stop(None, monkeypatch)
    for ask in (
        lambda: transport.publish([Hint(task_id=1)]),
        lambda: transport.receive(1, wait_seconds=0),
        transport.check,
    ):
        with pytest.raises(Unavailable) as refused:
            await ask()
        assert refused.value.code == "carrier_away"
    await queue.start(monkeypatch)
    await transport.publish([Hint(task_id=1)])
    assert len(await received(transport, 1)) == 1


async def test_what_nobody_needs_to_hear_again_is_deleted_and_the_rest_is_left(transport, queue, engine, harness):
    waits = (await harness.enqueue(a_task())).task_id
    held = await a_running_task(harness, worker="second")
    mine = await a_running_task(harness, worker="first")
    cases = {
        "terminal": Hint(task_id=int(await a_completed_task(harness))),
        "canceled": Hint(task_id=int(await a_canceled_task(harness))),
        "unknown": Hint(task_id=10**9),
        "stale": Hint(task_id=int(await a_retrying_task(harness))),
        "not_due": Hint(task_id=int(await a_retrying_task(harness)), attempt=2),
        "over_budget": Hint(task_id=int(waits), attempt=99),
        "mine": Hint(task_id=int(mine.task_id)),
        "held": Hint(task_id=int(held.task_id)),
        "waits": Hint(task_id=int(waits)),
        "twice": Hint(task_id=int(waits)),
    }
    await transport.publish(list(cases.values()))
    for body in MALFORMED:
        queue.send(body)
    looked: list[int] = []
    consumer = consumer_of(transport, engine, await harness.worker_id("first"), looked)
    judged = await consumer.take(await received(transport, len(cases) + len(MALFORMED)))
    assert sorted(one.reason for one in judged) == sorted(
        [
            *("terminal", "terminal", "unknown", "stale", "not_due", "over_budget"),
            *("duplicate", "duplicate", "held_by_another", "waiting"),
            *(["malformed"] * len(MALFORMED)),
        ]
    )
    assert len(looked) == 1
    assert queue.left() == 2


async def test_a_followed_hint_is_deleted_when_its_task_is_over(transport, queue, engine, harness):
    task = await harness.enqueue(a_task())
    consumer = consumer_of(transport, engine, await harness.worker_id("first"), [])
    await transport.publish([Hint(task_id=int(task.task_id))])
    await consumer.take(await received(transport, 1))
    lease = await harness.claim_task(task.task_id)
    extended = []
    extend = transport.extend

    async def noted(deliveries):
        extended.extend(deliveries)
        await extend(deliveries)

    transport.extend = noted
    await consumer.keep_once()
    assert len(extended) == 1 and queue.left() == 1
    await harness.settle(lease, Completed(b"null"))
    await consumer.keep_once()
    assert len(extended) == 1 and queue.left() == 0


async def test_a_followed_hint_is_let_go_when_another_has_its_task(transport, queue, engine, harness):
    task = await harness.enqueue(a_task())
    consumer = consumer_of(transport, engine, await harness.worker_id("first"), [])
    await transport.publish([Hint(task_id=int(task.task_id))])
    await consumer.take(await received(transport, 1))
    await harness.claim_task(task.task_id, worker="second")
    await consumer.keep_once()
    assert queue.left() == 1
    (again,) = await received(transport, 1)
    (judged,) = await consumer.take([again])
    assert judged.reason == "held_by_another"


@pytest.mark.parametrize("queue", ["sqs"], indirect=True)
async def test_a_message_carries_its_action_beside_its_body(transport, queue):
    await transport.publish([Hint(task_id=7, attempt=2, action=ACTION)])
    found = queue.attributes()
    assert found["body"] == {"task_id": "7", "attempt": 2}
    assert found["taskType"]["StringValue"] == ACTION


@pytest.mark.parametrize("queue", ["sqs"], indirect=True)
async def test_dead_hints_are_sent_again_while_their_task_waits(queue, holdfast_url, engine, harness):
    dead = queue.make(f"{queue.url.rpartition('/')[2]}-dead")
    waits = (await harness.enqueue(a_task())).task_id
    over = await a_completed_task(harness)
    for body in (f'{{"task_id": "{waits}"}}', f'{{"task_id": "{over}"}}', '{"task_id": "1000000"}', "{"):
        queue.send(body, url=dead)
    engine.settings = Settings(url=holdfast_url, wake=queue.settings(sqs_dead_letter_url=dead))
    relay = Relay(engine)
    await relay.revive_once()
    await relay.close()
    assert (queue.left(), queue.left(url=dead)) == (1, 0)
    assert queue.attributes()["body"] == {"task_id": waits, "attempt": 1}


@pytest.mark.parametrize("queue", ["sqs"], indirect=True)
async def test_a_dead_letter_queue_that_is_named_and_not_there_is_told(queue, holdfast_url, engine):
    engine.settings = Settings(url=holdfast_url, wake=queue.settings(sqs_dead_letter_url=f"{queue.url}-nowhere"))
    relay = Relay(engine)
    with pytest.raises(NotFound) as told:
        await relay.revive_once()
    await relay.close()
    found = (told.value.code, told.value.category)
    assert found == ("DAG_VALIDATION_DEAD_LETTER_QUEUE_NOT_CONFIGURED", "validation")


def test_a_dead_letter_queue_without_a_queue_is_refused():
    with pytest.raises(Invalid, match="DAG_VALIDATION_DEAD_LETTER_QUEUE_NOT_CONFIGURED"):
        require_carrier(WakeSettings(sqs_dead_letter_url="https://sqs.example/dead"), None)


@pytest.mark.representative(one_in=2)
async def test_a_relay_sends_what_is_due_and_gives_back_what_it_cannot(
    queue, holdfast_url, engine, harness, monkeypatch
):
    await write_hints(engine, True, actor="test", reason="")
    engine.settings = Settings(url=holdfast_url, wake=queue.settings())
    relay = Relay(engine)
    await harness.enqueue_many(a_task(), [{}] * 12)
    await queue.stop(None, monkeypatch)
    with pytest.raises(Unavailable):
        await relay.relay_once()
    await queue.start(monkeypatch)
    # A moment later: an address that does not answer is left alone for a while.
    assert await eventually(relay.relay_once) == 12
    assert await relay.relay_once() == 0
    await relay.close()
    assert queue.left() == 12
