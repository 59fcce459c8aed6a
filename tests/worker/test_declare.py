"""Schedules from code: checked where they are written, declared when a worker starts."""

from __future__ import annotations

import logging
from datetime import datetime

import pytest

import holdfast as hf
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import FlowInput, Node, NodeKind
from holdfast.engine.queries.schedules import list_schedules
from holdfast.errors import HoldfastError, Invalid
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.testing.idle import run_until_idle
from holdfast.worker.runtime.declare_schedules import declare_schedules


def an_app(**schedule):
    app = hf.App("shop")
    seen = []

    @app.action(queue="mail", priority=3, max_retries=7)
    async def digest(scheduled_for: datetime, day: str = "today") -> None:
        seen.append((scheduled_for, day))

    if schedule:
        app.schedule("digest", digest, **schedule)
    return app, digest, seen


async def declare(engine, app):
    await declare_schedules(engine, f"app:{app.name}", app.schedules.values(), app.actions)


async def view(engine):
    (found,) = await list_schedules(engine.database, DEFAULT_TENANT_ID)
    return found


async def test_a_worker_declares_the_schedules_of_its_app_and_runs_what_they_fire(engine, harness, clock):
    app, _, seen = an_app(cron="30 6 * * *", timezone="Europe/Berlin", input={"day": "monday"})
    await run_until_idle(app, engine)
    found = await view(engine)
    assert (found.name, found.origin, found.queue, found.priority) == ("shop.digest", "app:shop", "mail", 3)
    await clock.advance(seconds=(found.next_at - found.at).total_seconds() + 1)
    assert await harness.schedule_once() == 1
    await run_until_idle(app, engine)
    assert seen == [(found.upcoming[0], "monday")]
    assert (await view(engine)).last.outcome == "completed"


async def test_declaring_again_changes_what_changed_and_keeps_a_pause(engine, harness):
    first, _, _ = an_app(cron="30 6 * * *")
    await declare(engine, first)
    before = await view(engine)
    await harness.schedules.pause("shop.digest", actor="ann")
    await declare(engine, first)
    assert await engine.database.fetchval("select revision from holdfast.schedule") == 1
    second, _, _ = an_app(every="1h", overlap="queue")
    await declare(engine, second)
    after = await view(engine)
    assert (after.cron, after.every_seconds, after.overlap, after.paused_by) == (None, 3600.0, "queue", "ann")
    assert after.next_at != before.next_at
    await declare(engine, hf.App("shop"))
    assert (await view(engine)).name == "shop.digest"


async def test_a_changed_policy_does_not_move_the_next_slot(engine, clock, harness):
    await declare(engine, an_app(cron="30 6 * * *")[0])
    before = await view(engine)
    await clock.advance("2d")
    await declare(engine, an_app(cron="30 6 * * *", missed="all", overlap="allow")[0])
    assert (await view(engine)).next_at == before.next_at
    assert await harness.schedule_once() == 2


async def test_a_schedule_somebody_made_by_hand_is_left_alone(engine, harness, caplog):
    await harness.schedules.keep("shop.digest", origin="cli:ann")
    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        await declare(engine, an_app(cron="30 6 * * *")[0])
    assert (await view(engine)).cron == "0 * * * *"
    assert "shop.digest was not created by an app" in caplog.text


async def test_options_of_one_enqueue_hold_for_every_firing(engine, harness, clock):
    app, digest, _ = an_app()
    app.schedule("often", digest.options(priority=1, queue="urgent", tags=["a"], max_retries=0), every="1h")
    await declare(engine, app)
    fired = await harness.schedules.fire("shop.often")
    task = await harness.task(fired.task_id)
    assert (task.queue, task.priority, task.max_retries, task.tags[0]) == ("urgent", 1, 0, "a")


def a_definition(*inputs, action="shop.digest", **fields):
    nodes = (Node(name="only", action=action, **fields),)
    return FlowDefinition(name="shop.flow", nodes=nodes, inputs=tuple(FlowInput(name=name) for name in inputs))


async def test_a_flow_is_kept_with_its_schedule(engine, harness):
    app, _, _ = an_app()
    app.schedule("flow", a_definition("scheduled_for", "day"), every="1h", input={"day": "monday"})
    await declare(engine, app)
    fired = await harness.schedules.fire("shop.flow")
    row = await engine.database.fetchrow("select input, tags from holdfast.run where run_id = $1", int(fired.run_id))
    assert b'"day":"monday"' in row["input"] and b"scheduled_for" in row["input"]
    assert "schedule:shop.flow" in row["tags"]


def a_flow_of(app, digest):
    @app.flow
    def nightly(scheduled_for: str):
        digest(scheduled_for=scheduled_for)

    return nightly


async def test_options_of_one_start_hold_for_every_run(engine, harness):
    app, digest, _ = an_app()
    nightly = a_flow_of(app, digest)
    app.schedule("flow", nightly.options(priority=1, tags=["a"], concurrency=3), every="1h")
    await declare(engine, app)
    fired = await harness.schedules.fire("shop.flow")
    run = "select priority, tags[1], max_active from holdfast.run where run_id = $1"
    assert tuple(await engine.database.fetchrow(run, int(fired.run_id))) == (1, "a", 3)
    with pytest.raises(Invalid, match="invalid_schedule"):
        app.schedule("other", nightly.options(key="k"), every="1h")


async def test_a_limit_that_changed_is_declared_again(engine):
    for concurrency in (3, None, 2):
        app, digest, _ = an_app()

        app.schedule("flow", a_flow_of(app, digest).options(concurrency=concurrency), every="1h")
        await declare(engine, app)
        assert (await view(engine)).max_active == concurrency


def test_an_included_app_brings_its_schedules_and_datasets():
    shop, _, _ = an_app(every="1h")
    dataset = shop.dataset("orders", version=1, columns={"order_id": "bigint"})
    whole = hf.App("whole")
    whole.include(shop)
    assert list(whole.schedules) == ["shop.digest"] and whole.datasets == {("orders", 1): dataset}
    other = hf.App("other")
    other.dataset("orders", version=1, columns={"order_id": "text"})
    with pytest.raises(Invalid, match="dataset_invalid"):
        whole.include(other)


async def test_a_flow_that_is_traced_later_is_traced_by_the_worker(engine, harness):
    class Traced:
        name, inputs = "shop.flow", ()
        traced = 0

        @property
        def definition(self):
            self.traced += 1
            return a_definition()

    app, flow = an_app()[0], Traced()
    app.schedule("flow", flow, every="1h")
    assert flow.traced == 0
    await declare(engine, app)
    assert flow.traced == 1 and (await harness.schedules.fire("shop.flow")).run_id


async def test_a_flow_of_a_flow_needs_the_inner_one_first(engine):
    app, _, _ = an_app()
    app.schedule("flow", a_definition(action="shop.inner", kind=NodeKind.FLOW), every="1h")
    with pytest.raises(HoldfastError) as refused:
        await declare(engine, app)
    assert refused.value.code == "flow_not_found"


async def test_a_flow_with_an_action_of_another_app_is_refused(engine):
    app, _, _ = an_app()
    app.schedule("flow", a_definition(action="other.thing"), every="1h")
    with pytest.raises(HoldfastError) as refused:
        await declare(engine, app)
    assert refused.value.code == "action_not_found"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({}, "invalid_schedule"),
        ({"cron": "61 * * * *"}, "invalid_cron"),
        ({"every": "0.1s"}, "invalid_interval"),
        ({"every": "1h", "timezone": "Nowhere"}, "invalid_timezone"),
        ({"every": "1h", "overlap": "merge"}, "invalid_schedule"),
        ({"every": "1h", "missed": "some"}, "invalid_schedule"),
        ({"every": "1h", "input": {"unknown": 1}}, "invalid_input"),
        ({"every": "1h", "input": {"day": object()}}, "payload_not_json"),
    ],
)
def test_mistakes_show_where_they_are_made(options, code):
    app, digest, _ = an_app()
    with pytest.raises(Invalid) as refused:
        app.schedule("digest", digest, **options)
    assert refused.value.code == code and not app.schedules


def test_what_cannot_be_scheduled_is_refused():
    app, digest, _ = an_app(every="1h")
    for target in (digest.function, "shop.digest", digest.options(key="k"), digest.options(delay="1m")):
        with pytest.raises(Invalid) as refused:
            app.schedule("other", target, every="1h")
        assert refused.value.code == "invalid_schedule"
    with pytest.raises(Invalid) as refused:
        app.schedule("digest", digest, every="2h")
    assert refused.value.code == "schedule_exists"


async def test_a_flow_of_the_app_is_scheduled_as_it_is_written(engine, harness, clock):
    app, digest, seen = an_app()

    @app.flow
    def briefing(scheduled_for: str):
        digest(scheduled_for=scheduled_for, day="monday")

    app.schedule("briefing", briefing, cron="30 6 * * *", timezone="America/New_York")
    await run_until_idle(app, engine)
    found = await view(engine)
    await clock.advance(seconds=(found.next_at - found.at).total_seconds() + 1)
    assert await harness.schedule_once() == 1
    await run_until_idle(app, engine)
    assert seen == [(found.upcoming[0], "monday")]
    assert (await view(engine)).last.outcome == "completed"
