"""Webhooks on a real database, delivered to a real receiver on loopback."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.engine.cutting import check_wherever_it_dies
from tests.engine.test_observe import until_settled
from tests.net.receiver import receiving, saying, silent

from holdfast.engine.audit import list_audit
from holdfast.engine.limits.queues import pause as pause_queue
from holdfast.engine.maintenance.loops import Loops
from holdfast.engine.webhooks.commands import (
    add_webhook,
    list_webhooks,
    pause_webhook,
    remove_webhook,
    resume_webhook,
    rotate_webhook,
    show_webhook,
    try_webhook,
)
from holdfast.engine.webhooks.deliver import LEASE_SECONDS, Deliveries, deliver_webhooks_once
from holdfast.errors import Conflict, NotFound, Unauthorized
from holdfast.net.address import EgressRules
from holdfast.net.guarded_request import Guarded
from holdfast.settings.settings import EgressSettings, Settings, WebhookSettings
from holdfast.testing.factories import a_completed_task, a_failed_task, a_running_task, a_task
from holdfast.webhooks import verify

TENANT = 1


@pytest.fixture
def holdfast_settings():
    return Settings(
        egress=EgressSettings(allow=("127.0.0.0/8",), ports="*"),
        webhooks=WebhookSettings(failures_max=3, look_seconds=0.01, timeout_seconds=5),
    )


@pytest.fixture
async def receiver():
    async with receiving() as made:
        yield made


@pytest.fixture
async def guarded(engine):
    made = Guarded(EgressRules.of(engine.settings.egress))
    yield made
    await made.close()


@pytest.fixture
def deliver(engine, guarded, clock, harness):
    """One pass, a moment after the last one, once what happened is settled."""

    async def run():
        await clock.advance(seconds=1)
        await until_settled(harness)
        return await deliver_webhooks_once(engine, guarded)

    return run


@pytest.fixture
def hook(engine, receiver, harness):
    """Add a webhook to the receiver; answers its secret."""

    async def add(name="hook", **wanted):
        await until_settled(harness)
        made = await add_webhook(engine, TENANT, name, receiver.url, actor="anna", **wanted)
        return made.secret

    return add


async def seconds(engine):
    """What the database takes for the time."""
    return float(await engine.database.fetchval("select extract(epoch from holdfast.instant())"))


def told(receiver):
    return [asked.json["type"] for asked in receiver.asked]


async def shown(engine, name="hook"):
    return await show_webhook(engine.database, TENANT, name)


async def test_events_arrive_signed_in_order_and_once(engine, harness, receiver, hook, deliver):
    secret = await hook()
    task_id = await a_completed_task(harness)
    await deliver()
    await deliver()
    assert told(receiver) == ["task.started", "task.completed"]
    for asked in receiver.asked:
        verify(asked.headers, asked.body, secret, now=await seconds(engine))
        assert (asked.json["data"]["task_id"], asked.json["data"]["action"]) == (task_id, "shop.charge")
    assert len({asked.headers["webhook-id"] for asked in receiver.asked}) == 2
    assert (await shown(engine)).delivered == 2


async def test_what_happened_before_is_not_delivered(harness, receiver, hook, deliver):
    await a_completed_task(harness)
    await hook()
    await deliver()
    assert told(receiver) == []


async def test_a_webhook_gets_what_it_asked_for(harness, receiver, hook, deliver):
    await hook(kinds=["task.failed", "dead_letter.*"], actions=["shop.charge"])
    await a_completed_task(harness)
    await a_failed_task(harness)
    await harness.enqueue(a_task(action="other.thing"))
    await deliver()
    assert sorted(told(receiver)) == ["dead_letter.opened", "task.failed"]


async def test_events_about_no_task_arrive_too(engine, harness, receiver, hook, deliver):
    await hook(kinds=["queue.paused"], queues=["default"])
    await a_running_task(harness)
    await pause_queue(engine, TENANT, "default", actor="anna", reason="lunch")
    await deliver()
    (asked,) = receiver.asked
    assert (asked.json["type"], asked.json["data"]["queue"], asked.json["data"]["task_id"]) == (
        "queue.paused",
        "default",
        None,
    )


async def test_a_failed_delivery_is_repeated_under_the_same_id_before_anything_else(
    engine, harness, receiver, hook, deliver, guarded, clock
):
    await clock.freeze()
    await hook()
    receiver.answers = [500, saying(b"nonsense"), 204]
    await a_running_task(harness)
    await a_running_task(harness)
    assert (await deliver()).failed == 1
    view = await shown(engine)
    assert (view.state, view.failures, view.last_error) == ("retrying", 1, "it answered 500")
    assert (await deliver_webhooks_once(engine, guarded)).webhooks == 0, "the backoff is not over"
    await clock.advance(seconds=2)
    await deliver()
    await clock.advance(seconds=5)
    await deliver()
    ids = [asked.headers["webhook-id"] for asked in receiver.asked]
    assert (len(ids), len(set(ids)), len(set(ids[:3]))) == (4, 2, 1)
    view = await shown(engine)
    assert (view.state, view.failures, view.last_error, view.delivered) == ("active", 0, None, 2)


async def test_too_many_failures_pause_it_with_the_reason_until_somebody_resumes(
    engine, harness, receiver, hook, deliver, clock
):
    await hook()
    receiver.answers = [500]
    await a_running_task(harness)
    for _ in range(4):
        await deliver()
        await clock.advance(seconds=60)
    view = await shown(engine)
    assert (view.state, len(receiver.asked)) == ("paused", 3)
    assert view.paused_reason == "3 consecutive deliveries failed; the last one: it answered 500."
    verbs = [row.verb for row in await list_audit(engine.database, TENANT)]
    assert verbs == ["webhook.pause", "webhook.add"]
    receiver.answers = [204]
    assert await resume_webhook(engine, TENANT, "hook", actor="anna", reason="mended")
    assert not await resume_webhook(engine, TENANT, "hook", actor="anna")
    await deliver()
    assert told(receiver) == ["task.started"] * 4


async def test_a_paused_webhook_catches_up_or_begins_anew(engine, harness, receiver, hook, deliver):
    for name in ("late", "anew"):
        await hook(name)
        assert await pause_webhook(engine, TENANT, name, actor="anna", reason="mending")
        assert not await pause_webhook(engine, TENANT, name, actor="anna")
    await a_running_task(harness)
    await deliver()
    assert receiver.asked == []
    await until_settled(harness)
    await resume_webhook(engine, TENANT, "late", actor="anna")
    await resume_webhook(engine, TENANT, "anew", from_now=True, actor="anna")
    await deliver()
    assert (await shown(engine, "late")).delivered == 1
    assert (await shown(engine, "anew")).delivered == 0


async def test_a_receiver_that_says_it_is_gone_is_left_alone(engine, harness, receiver, hook, deliver):
    await hook()
    receiver.answers = [410]
    await a_running_task(harness)
    await deliver()
    assert (await shown(engine)).paused_by == "holdfast:deliver"


async def test_copies_of_the_loop_deliver_each_event_once(engine, harness, receiver, hook, clock):
    await hook()
    for _ in range(5):
        await a_running_task(harness)
    await clock.advance(seconds=1)
    await until_settled(harness)
    copies = [Guarded(EgressRules.of(engine.settings.egress)) for _ in range(4)]
    done = await asyncio.gather(*(deliver_webhooks_once(engine, one) for one in copies))
    for one in copies:
        await one.close()
    assert (sum(one.webhooks for one in done), told(receiver)) == (1, ["task.started"] * 5)


async def test_one_that_lost_its_lease_counts_nothing_and_the_next_repeats_its_event(
    engine, harness, receiver, hook, deliver, clock
):
    await hook()
    await a_running_task(harness)

    async def sleep_through_the_lease(_asked):
        receiver.on_asked = None
        await clock.advance(seconds=LEASE_SECONDS + 1)
        await deliver()

    receiver.on_asked = sleep_through_the_lease
    assert (await deliver()).events == 0
    assert (await shown(engine)).delivered == 1
    assert len({asked.headers["webhook-id"] for asked in receiver.asked}) == 1
    assert len(receiver.asked) == 2


async def test_while_a_secret_is_replaced_both_sign(engine, harness, receiver, hook, deliver, clock):
    old = await hook()
    new = (await rotate_webhook(engine, TENANT, "hook", grace_seconds=3600, actor="anna")).secret
    await a_running_task(harness)
    await deliver()
    now = await seconds(engine)
    for secret in (old, new):
        verify(receiver.asked[0].headers, receiver.asked[0].body, secret, now=now)
    await clock.advance(seconds=3601)
    await a_running_task(harness)
    await deliver()
    now = await seconds(engine)
    verify(receiver.asked[1].headers, receiver.asked[1].body, new, now=now)
    with pytest.raises(Unauthorized):
        verify(receiver.asked[1].headers, receiver.asked[1].body, old, now=now)


async def test_a_test_says_what_came_back_and_moves_nothing(engine, receiver, hook):
    secret = await hook()
    await pause_webhook(engine, TENANT, "hook", actor="anna")
    tested = await try_webhook(engine, TENANT, "hook", actor="anna")
    assert (tested.is_delivered, tested.status) == (True, 204)
    (asked,) = receiver.asked
    verify(asked.headers, asked.body, secret, now=await seconds(engine))
    receiver.answers = [500]
    tested = await try_webhook(engine, TENANT, "hook", actor="anna")
    assert (tested.is_delivered, tested.sentence) == (False, "it answered 500")
    assert (await shown(engine)).failures == 0


async def test_no_answer_of_a_receiver_is_shown(engine, harness, receiver, hook, deliver):
    await hook()
    receiver.answers = [saying(b"HTTP/1.1 500 canary-a\r\nx-b: canary-b\r\ncontent-length: 8\r\n\r\ncanary-c")]
    await a_running_task(harness)
    await deliver()
    tested = await try_webhook(engine, TENANT, "hook", actor="anna")
    assert "canary" not in f"{await shown(engine)} {tested}"


async def test_no_list_and_no_record_holds_a_secret(engine, hook):
    secrets = [await hook(), (await rotate_webhook(engine, TENANT, "hook", actor="anna")).secret]
    said = f"{await list_webhooks(engine.database, TENANT)} {await list_audit(engine.database, TENANT)}"
    assert not [secret for secret in secrets if secret in said]


async def test_a_name_is_taken_once_and_a_wrong_one_is_not_found(engine, hook):
    await hook()
    with pytest.raises(Conflict):
        await hook()
    with pytest.raises(NotFound) as missing:
        await remove_webhook(engine, TENANT, "hok", actor="anna")
    assert "hook" in missing.value.advice
    await remove_webhook(engine, TENANT, "hook", actor="anna", reason="moved")
    assert await list_webhooks(engine.database, TENANT) == []


async def test_what_another_setting_forbids_later_is_refused_at_the_connection(
    engine, harness, receiver, hook, clock, deliver
):
    await hook()
    await a_running_task(harness)
    await clock.advance(seconds=1)
    await until_settled(harness)
    strict = Guarded(replace(EgressRules.of(engine.settings.egress), networks=()))
    for _ in range(5):
        await deliver_webhooks_once(engine, strict)
        await clock.advance(seconds=60)
    await strict.close()
    assert receiver.connections == 0
    view = await shown(engine)
    assert "not an address of the public internet" in view.last_error
    assert (view.failures, view.paused_at) == (0, None)
    await deliver()
    assert receiver.connections == 1 and (await shown(engine)).delivered == 1


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_wherever_a_delivery_dies_every_event_arrives_in_order_and_repeats_keep_their_id(
    engine, harness, receiver, hook, clock, guarded, moment
):
    def arrived():
        found = [(asked.headers["webhook-id"], asked.json["type"]) for asked in receiver.asked]
        receiver.asked.clear()
        return found

    await hook()
    await check_wherever_it_dies(engine, harness, clock, moment, guarded, arrived)


async def test_a_slow_receiver_holds_up_nobody_else(engine, harness, receiver, hook, guarded, clock):
    async with receiving(silent) as slow:
        await add_webhook(engine, TENANT, "slow", slow.url, actor="anna")
        await hook()
        await a_running_task(harness)
        await clock.advance(seconds=1)
        await until_settled(harness)
        arrived = asyncio.Event()

        async def note(_asked):
            arrived.set()

        receiver.on_asked = note
        deliveries = Deliveries(engine, guarded)
        await deliveries.begin()
        async with asyncio.timeout(20):
            await arrived.wait()
        await deliveries.close()
    assert told(receiver) == ["task.started"]


async def test_the_loops_deliver(engine, harness, receiver, hook):
    await hook()
    arrived = asyncio.Event()

    async def note(_asked):
        arrived.set()

    receiver.on_asked = note
    loops = asyncio.create_task(Loops(engine).run())
    try:
        await a_running_task(harness)
        async with asyncio.timeout(20):
            await arrived.wait()
    finally:
        loops.cancel()
        await asyncio.gather(loops, return_exceptions=True)
    assert told(receiver)[0] == "task.started"
