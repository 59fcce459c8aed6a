"""`run_until_idle` makes the passes of production, and moves the clock for work but not for what the test decides."""

from __future__ import annotations

import pytest

import holdfast as hf
from holdfast.engine.campaigns.commands import show_campaign, start_campaign
from holdfast.engine.maintenance.loops import Loops
from holdfast.errors import WaitTimeout
from holdfast.testing.idle import run_until_idle


@pytest.fixture
def app(holdfast_url):
    return hf.App("idle", settings=hf.Settings(url=holdfast_url))


@pytest.fixture
async def client(app):
    async with app.client() as opened:
        yield opened


@pytest.fixture
def ran(app):
    """Names of what `note` was asked to note. `mend`, and `heal` which has a breaker, fail until one is healed."""
    ran: list[str] = []

    @app.action
    async def note(name: str = "note", after: object = None) -> None:
        ran.append(name)

    @app.action(max_retries=0)
    async def mend() -> None:
        if "healed" not in ran:
            raise ConnectionResetError("connection reset by peer")

    breaker = {"attempts_min": 2, "share": 0.5, "open_seconds": 3600}
    app.action(name="heal", max_retries=0, breaker=breaker)(mend.function)
    return ran


async def test_a_group_that_is_re_driven_runs(app, client, engine, clock, ran):
    await client.enqueue("idle.heal")
    assert (await run_until_idle(app, engine, clock=clock)).failed == 1
    ran.append("healed")
    [group] = await client.dead.groups()
    await client.dead.redrive_group(group.fingerprint, reason="mended")
    assert (await run_until_idle(app, engine, clock=clock)).completed == 1


@pytest.fixture
def campaign_over(app, client, engine, clock, ran):
    """Starts a campaign over four tasks of an action that failed, one of them as a canary; gives its number."""

    async def start(action: str) -> int:
        await client.enqueue_many(app.actions[action], [{}] * 4)
        await run_until_idle(app, engine, clock=clock)
        ran.append("healed")
        [group] = await client.dead.groups()
        view = await start_campaign(engine, 1, group.fingerprint, actor="ann", reason="mended", canary=1)
        return int(view.campaign_id)

    return start


async def test_a_campaign_goes_on_to_its_end(app, engine, clock, campaign_over):
    campaign_id = await campaign_over("idle.heal")
    assert (await run_until_idle(app, engine, clock=clock)).completed == 4
    assert (await show_campaign(engine, 1, campaign_id)).state == "completed"


async def test_what_a_pass_let_go_may_be_over_before_the_next_look(app, engine, campaign_over, monkeypatch, eventually):
    async def is_over() -> bool:
        return await engine.database.fetchval("select not exists (select from holdfast.live)")

    async def last_pass(loops: Loops) -> None:
        await eventually(is_over)

    await campaign_over("idle.mend")
    monkeypatch.setattr(Loops, "schedule", last_pass)
    assert (await run_until_idle(app, engine)).completed == 4


async def test_what_an_open_breaker_holds_waits_for_its_trial(app, client, engine, clock, ran):
    await client.enqueue_many(app.actions["idle.heal"], [{}] * 2)
    await run_until_idle(app, engine)
    await client.enqueue_many(app.actions["idle.heal"], [{}] * 3)
    assert (await run_until_idle(app, engine)).waiting == 3
    ran.append("healed")
    summary = await run_until_idle(app, engine, clock=clock)
    assert (summary.completed, summary.waiting) == (3, 0)


async def test_slots_that_have_come_fire_and_those_to_come_are_not_waited_for(app, client, engine, clock, ran):
    app.schedule("often", app.actions["idle.note"], every="1h", overlap="allow", missed="all")
    assert (await run_until_idle(app, engine, clock=clock)).completed == 0
    await clock.advance("3h")
    assert (await run_until_idle(app, engine, clock=clock)).completed == 3


async def test_a_slot_that_waits_fires_once_the_one_before_it_is_over(app, engine, clock, ran):
    app.schedule("often", app.actions["idle.note"], every="1h", overlap="queue", missed="all")
    await run_until_idle(app, engine)
    await clock.advance("2h")
    assert (await run_until_idle(app, engine)).completed == 2


@pytest.mark.parametrize("told", [True, False])
async def test_an_event_is_the_tests_to_send_or_to_let_go(app, client, engine, clock, ran, told):
    @app.flow
    def order():
        return app.actions["idle.note"](after=hf.wait_for("paid", timeout="1h"))

    run = await client.start(order)
    await run_until_idle(app, engine, clock=clock)
    assert (await run.show()).state == "running"
    if told:
        await client.signal("paid", 1)
    else:
        await clock.advance("1h")
    await run_until_idle(app, engine, clock=clock)
    assert (await run.show()).state == ("completed" if told else "failed")


async def test_a_wait_that_ends_before_the_next_task_is_due_ends_first(app, client, engine, clock, ran):
    note = app.actions["idle.note"]

    @app.flow
    def order():
        late = note.node(trigger_rule="all_done")
        return late(name="gave up", after=hf.wait_for("paid", timeout="1h"))

    await client.enqueue(note.options(delay="2h"), name="a task due later")
    await client.start(order)
    await run_until_idle(app, engine, clock=clock)
    assert ran == ["gave up", "a task due later"]


async def test_time_that_is_moved_for_ever_has_a_limit(app, client, engine, clock):
    @app.action(max_retries=10_000, retry={"base_backoff_secs": 60.0})
    async def never() -> None:
        raise ConnectionResetError("connection reset by peer")

    await client.enqueue(never)
    with pytest.raises(WaitTimeout, match="1 tasks"):
        await run_until_idle(app, engine, clock=clock, seconds_max=0.2)


async def test_the_end_of_a_sub_flow_is_carried_up_through_flows_that_have_no_tasks(
    app, client, engine, clock, ran, monkeypatch
):
    """Neither the worker nor the first passes tell parents anything, as when commits are slow: nothing is idle yet."""
    note = app.actions["idle.note"]

    @app.flow
    def inner():
        return note(name="inner")

    @app.flow
    def middle():
        return inner()

    @app.flow
    def outer():
        return note(name="outer", after=middle())

    real, passes = Loops.runs, iter(range(100))

    async def late(loops: Loops) -> float | None:
        return await real(loops) if next(passes) > 2 else None

    async def silent(*_: object) -> None: ...

    monkeypatch.setattr(Loops, "runs", late)
    monkeypatch.setattr("holdfast.worker.transport.database.publish_and_propagate", silent)
    run = await client.start(outer)
    await run_until_idle(app, engine, clock=clock)
    assert ((await run.show()).state, ran) == ("completed", ["inner", "outer"])
