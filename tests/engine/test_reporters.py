"""Reporters on a real database: what webhooks promise, for code that is called in place of a URL that is asked."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace

import pytest
from tests.engine.cutting import check_wherever_it_dies
from tests.engine.reporting import REFERENCE, URL, Spy, installed
from tests.engine.test_observe import until_settled
from tests.net.receiver import receiving

from holdfast.engine.audit import list_audit
from holdfast.engine.engine import Engine
from holdfast.engine.identity.tenants import create_tenant
from holdfast.engine.limits.queues import pause as pause_queue
from holdfast.engine.maintenance.loops import Loops
from holdfast.engine.queries.events import position
from holdfast.engine.webhooks.commands import add_webhook, resume_webhook, show_webhook
from holdfast.engine.webhooks.deliver import LEASE_SECONDS, Deliveries, deliver_webhooks_once
from holdfast.net.address import EgressRules
from holdfast.net.guarded_request import Guarded, is_possible
from holdfast.settings.settings import EgressSettings, Settings, WebhookSettings
from holdfast.testing.engine_harness import EngineHarness
from holdfast.testing.factories import a_completed_task, a_failed_task, a_running_task

TENANT = 1
NO_NETWORK = None
"""In place of what asks URLs: a reporter that reached it would fail."""


@pytest.fixture
def holdfast_settings():
    return Settings(
        egress=EgressSettings(allow=("127.0.0.0/8",), ports="*"),
        webhooks=WebhookSettings(failures_max=3, look_seconds=0.01, timeout_seconds=5, reporters=(REFERENCE,)),
    )


@pytest.fixture
def spy(monkeypatch):
    made = Spy()
    installed(monkeypatch, made)
    return made


@pytest.fixture
def deliver(engine, clock, harness):
    """One pass, a moment after the last one, once what happened is settled."""

    async def run(by=engine):
        await clock.advance(seconds=1)
        await until_settled(harness)
        return await deliver_webhooks_once(by, NO_NETWORK)

    return run


@pytest.fixture
def hook(engine, harness):
    """Add a webhook for the reporter."""

    async def add(name="hook", tenant_id=TENANT, **wanted):
        await until_settled(harness)
        return await add_webhook(engine, tenant_id, name, URL, actor="anna", **wanted)

    return add


async def shown(engine, name="hook"):
    return await show_webhook(engine.database, TENANT, name)


async def test_events_are_reported_in_order_and_once_with_all_that_a_webhook_is_sent(
    engine, harness, spy, hook, deliver
):
    await hook()
    task_id = await a_completed_task(harness)
    await deliver()
    await deliver()
    assert spy.kinds == ["task.started", "task.completed"]
    first, second = spy.told
    assert (first.task_id, first.attempt, first.queue, first.action) == (task_id, 1, "default", "shop.charge")
    assert first.tenant == "default"
    assert first.delivery_id.startswith("evt_") and first.delivery_id != second.delivery_id
    assert json.loads(first.body) == {
        "type": "task.started",
        "timestamp": first.at.isoformat(),
        "data": {
            "task_id": task_id,
            "attempt": 1,
            "queue": "default",
            "action": "shop.charge",
            "detail": first.detail,
            "cursor": first.cursor,
        },
    }
    view = await shown(engine)
    assert (view.delivered, position(view.cursor) >= position(second.cursor)) == (2, True)


async def test_its_body_is_what_a_url_is_sent_byte_for_byte(engine, harness, spy, hook, clock):
    guarded = Guarded(EgressRules.of(engine.settings.egress))
    async with receiving() as receiver:
        await hook()
        await add_webhook(engine, TENANT, "url", receiver.url, actor="anna")
        await a_completed_task(harness)
        await clock.advance(seconds=1)
        await until_settled(harness)
        await deliver_webhooks_once(engine, guarded)
    await guarded.close()
    sent = [(asked.headers["webhook-id"], asked.body) for asked in receiver.asked]
    assert sent == [(event.delivery_id, event.body) for event in spy.told] and len(sent) == 2


async def test_a_reporter_gets_what_was_asked_for(harness, spy, hook, deliver):
    await hook(kinds=["task.failed"], actions=["shop.charge"])
    await a_failed_task(harness)
    await deliver()
    assert spy.kinds == ["task.failed"]


async def test_events_about_no_task_have_no_id(engine, harness, spy, hook, deliver):
    await hook(kinds=["queue.paused"])
    await a_running_task(harness)
    await pause_queue(engine, TENANT, "default", actor="anna", reason="lunch")
    await deliver()
    [event] = spy.told
    assert (event.task_id, event.attempt, event.queue) == (None, None, "default")


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_wherever_a_process_dies_every_event_is_reported_in_order_and_repeats_keep_their_id(
    engine, harness, spy, hook, clock, moment
):
    def reported():
        found = [(event.delivery_id, event.kind) for event in spy.told]
        spy.told.clear()
        return found

    await hook()
    await check_wherever_it_dies(engine, harness, clock, moment, NO_NETWORK, reported)


async def test_one_that_lost_its_lease_counts_nothing_and_the_next_repeats_its_event(
    engine, harness, spy, hook, deliver, clock
):
    await hook()
    await a_running_task(harness)
    ours = asyncio.get_running_loop()

    async def sleep_through_the_lease():
        await clock.advance(seconds=LEASE_SECONDS + 1)
        await deliver()

    async def from_over_there(_event):
        spy.does = None
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(sleep_through_the_lease(), ours))

    spy.does = from_over_there
    assert (await deliver()).events == 0
    assert (await shown(engine)).delivered == 1
    assert (len(spy.told), len({event.delivery_id for event in spy.told})) == (2, 1)


async def test_one_that_fails_is_tried_again_then_paused_with_its_reason_and_resumes_where_it_stopped(
    engine, harness, spy, hook, deliver, clock
):
    async def refuse(_event):
        raise ConnectionError("amqp://user:hunter2@broker")

    await hook()
    spy.does = refuse
    await a_completed_task(harness)
    await deliver()
    view = await shown(engine)
    assert (view.state, view.failures, view.last_error) == ("retrying", 1, "its report() raised ConnectionError")
    for _ in range(3):
        await clock.advance(seconds=60)
        await deliver()
    view = await shown(engine)
    assert (view.state, spy.kinds) == ("paused", ["task.started"] * 3)
    assert view.paused_reason == "3 consecutive deliveries failed; the last one: its report() raised ConnectionError."
    assert "hunter2" not in f"{view} {await list_audit(engine.database, TENANT)}"
    spy.does = None
    await resume_webhook(engine, TENANT, "hook", actor="anna", reason="mended")
    await deliver()
    assert spy.kinds == ["task.started"] * 4 + ["task.completed"]
    assert len({event.delivery_id for event in spy.told}) == 2


async def test_other_tenants_events_never_reach_it(engine, harness, spy, hook, deliver):
    acme = await create_tenant(engine.database, "acme", actor="anna", reason="new")
    await hook(tenant_id=acme.tenant_id)
    at_acme = EngineHarness(engine.of(acme.tenant_id))
    ours = await a_completed_task(harness)
    theirs = await a_completed_task(at_acme)
    await deliver()
    assert [(event.task_id, event.tenant) for event in spy.told] == [(theirs, "acme")] * 2 and ours != theirs


async def test_one_that_is_not_allowed_in_a_process_is_left_to_others(engine, harness, spy, hook, deliver, clock):
    await hook()
    await a_running_task(harness)
    strict = replace(engine.settings, webhooks=replace(engine.settings.webhooks, reporters=("other:reporter",)))
    async with Engine(engine.database.url, strict) as without:
        for _ in range(5):
            await deliver(without)
            await clock.advance(seconds=60)
    view = await shown(engine)
    assert (spy.made, view.failures, view.paused_at) == (0, 0, None)
    assert view.last_error == f"The reporter {REFERENCE} is not allowed here."
    await deliver()
    assert (spy.kinds, (await shown(engine)).last_error) == (["task.started"], None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "ModuleNotFoundError"),
        ("raise ValueError('hunter2')", "ValueError"),
        ("raise SystemExit(1)", "SystemExit"),
        ("factory = list", "AttributeError"),
    ],
)
async def test_one_that_cannot_be_imported_is_left_to_others(
    engine, harness, hook, deliver, monkeypatch, tmp_path, text, why
):
    monkeypatch.syspath_prepend(str(tmp_path))
    if text is not None:
        (tmp_path / "shop_events.py").write_text(text)
    await hook()
    await a_running_task(harness)
    done = await deliver()
    sys.modules.pop("shop_events", None)
    view = await shown(engine)
    assert (done.failed, view.failures, view.state) == (1, 0, "active")
    assert view.last_error == f"The reporter {REFERENCE} cannot be imported here: {why}."


async def test_a_process_makes_one_for_all_its_webhooks_and_closes_it(engine, harness, spy, hook, clock):
    await hook("one")
    await hook("two")
    deliveries = Deliveries(engine, NO_NETWORK)
    for _ in range(2):
        await a_running_task(harness)
        await clock.advance(seconds=1)
        await until_settled(harness)
        await deliveries.begin()
        await deliveries.settled()
    assert (spy.made, spy.closed, spy.kinds) == (1, 0, ["task.started"] * 4)
    await deliveries.close()
    assert spy.closed == 1


async def test_none_is_made_before_it_is_needed(spy, hook, deliver):
    await hook()
    await deliver()
    assert (spy.made, spy.closed) == (0, 0)


@pytest.fixture
def no_httpcore(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpcore", None)
    assert not is_possible()


async def test_without_what_asks_urls_reporters_are_served_and_urls_left_to_others(
    engine, harness, spy, hook, deliver, no_httpcore
):
    await hook()
    await add_webhook(engine, TENANT, "url", "http://127.0.0.1:9/", actor="anna")
    await a_running_task(harness)
    done = await deliver()
    assert (done.webhooks, done.failed, spy.kinds) == (1, 0, ["task.started"])
    view = await shown(engine, "url")
    assert (view.state, view.last_error) == ("active", None)


async def test_the_loops_report_also_without_what_asks_urls(engine, harness, spy, hook, no_httpcore):
    await hook()
    ours, arrived = asyncio.get_running_loop(), asyncio.Event()

    async def note(_event):
        ours.call_soon_threadsafe(arrived.set)

    spy.does = note
    loops = asyncio.create_task(Loops(engine).run())
    try:
        await a_running_task(harness)
        async with asyncio.timeout(20):
            await arrived.wait()
    finally:
        loops.cancel()
        await asyncio.gather(loops, return_exceptions=True)
    assert (spy.kinds[0], spy.closed) == ("task.started", 1)
