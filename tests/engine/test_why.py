"""Why a task is where it is, read from a real database in every position."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

import holdfast as hf
from holdfast.core.limits.breaker import Breaker, CircuitState
from holdfast.core.tasks.outcome import Canceled, Completed, Failed
from holdfast.engine.engine import Engine
from holdfast.engine.identity.tenants import limit_tenant
from holdfast.engine.limits import queues
from holdfast.engine.maintenance.loops import Loops
from holdfast.engine.queries.checkup import check_up
from holdfast.engine.queries.explain_run import why
from holdfast.errors import NotFound
from holdfast.settings.settings import Settings
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.store.statements import sql
from holdfast.testing.factories import (
    ACTION,
    a_canceled_task,
    a_completed_task,
    a_delayed_task,
    a_failed_task,
    a_failure,
    a_retrying_task,
    a_running_task,
    a_task,
)


@pytest.fixture
def ask(engine):
    async def ask(task_id: str):
        return await why(engine.database, engine.catalog, DEFAULT_TENANT_ID, int(task_id))

    return ask


@pytest.fixture
def register(engine):
    async def register(name="crew", *, queues=None, actions=("shop.charge",), slots=2, version="") -> int:
        row = await engine.database.fetchrow(
            sql("register_worker"), name, version, queues, list(actions), slots, "{}", 1, None
        )
        return row["worker_id"]

    return register


async def queued(harness, **options) -> str:
    return (await harness.enqueue(a_task(**options))).task_id


async def test_no_worker_ever(harness, ask):
    found = await ask(await queued(harness))
    assert (found.state, found.code) == ("queued", "no_worker")
    assert "no worker ever declared both" in found.headline


async def test_the_last_worker_was_lost(harness, engine, ask, register, clock):
    await register("web-3", version="1.4.2")
    task_id = await queued(harness)
    await clock.advance("2m")
    assert re.search(
        r"the last one, web-3 \(version 1.4.2\), last sent a heartbeat 2m \d\ds ago", (await ask(task_id)).headline
    )
    await engine.database.fetch(sql("lose_workers"), 30.0)
    await clock.advance("13m")
    assert re.search(r"the last one, web-3 \(version 1.4.2\), was lost 13m \d\ds ago", (await ask(task_id)).headline)


async def test_a_worker_is_silent_after_three_leases(harness, engine, clock, register):
    """Whoever asks counts alike: `why`, `doctor`, the gate of a campaign and the pass that shows workers as lost."""
    await clock.freeze()
    slow = Settings.load({}, lease_seconds=180, heartbeat_seconds=60)
    worker_id = await register("web-3", version="2")
    task_id = await queued(harness)
    lane_ids = [await engine.database.fetchval("select lane_id from holdfast.live")]
    async with Engine(engine.database.url, slow) as patient, hf.Client(slow, {}, url=engine.database.url) as client:
        for seconds, is_present in ((300, True), (300, False)):
            await clock.advance(seconds=seconds)
            now, silent = datetime.now(UTC), patient.silent_seconds
            assert ((await client.why(task_id)).code == "no_worker") is not is_present
            found = {one.name: one for one in await check_up(engine.database, now=now, silent_seconds=silent)}
            assert ("silent" in found["workers"].detail) is not is_present
            assert bool(await engine.database.fetch(sql("lane_versions"), lane_ids, silent, 1)) is is_present
            await Loops(patient).republish()
            state = await engine.database.fetchval("select state from holdfast.worker where worker_id = $1", worker_id)
            assert state == ("active" if is_present else "lost")


async def test_the_last_worker_left(harness, engine, ask, register):
    worker_id = await register("web-3")
    await engine.database.fetch(sql("retire_worker"), worker_id, False)
    assert "web-3, left" in (await ask(await queued(harness))).headline


async def test_the_last_worker_drains(harness, engine, ask, register):
    worker_id = await register("web-3")
    await engine.database.fetch(sql("drain_worker"), worker_id)
    assert "web-3, is draining" in (await ask(await queued(harness))).headline


async def test_a_worker_has_the_action_but_serves_other_queues(harness, ask, register):
    await register("web-3", queues=["a", "b"])
    assert "web-3 has the action but serves only a, b" in (await ask(await queued(harness))).headline


async def test_a_worker_of_other_actions_does_not_count(harness, ask, register):
    await register("web-3", actions=["shop.other"])
    assert (await ask(await queued(harness))).code == "no_worker"


async def test_a_paused_queue_names_who_and_why(harness, engine, ask, register):
    await register()
    task_id = await queued(harness, queue="mail")
    await queues.pause(engine, DEFAULT_TENANT_ID, "mail", actor="anna", reason="smtp is down")
    found = await ask(task_id)
    assert found.code == "queue_paused"
    assert "anna paused queue mail" in found.headline
    assert found.headline.endswith("smtp is down.")
    assert found.moves == ("holdfast queue resume mail",)


async def test_a_queue_at_its_limit(harness, engine, ask):
    await a_running_task(harness, queue="mail")
    first, second = await queued(harness, queue="mail"), await queued(harness, queue="mail")
    await queues.limit(
        engine, DEFAULT_TENANT_ID, "mail", max_running=1, starts_per_second=None, actor="anna", reason=""
    )
    assert "1/1 running, first in line" in (await ask(first)).headline
    assert "1/1 running, 1 task of shop.charge ahead" in (await ask(second)).headline
    assert (await ask(first)).code == "limit_reached"


async def test_a_tenant_at_its_limit(harness, engine, ask, register):
    """What runs in another queue counts; below the limit, and without one, something else is the reason."""
    await register()
    lease = await a_running_task(harness, queue="slow")
    waiting = await queued(harness, queue="mail")
    assert (await ask(waiting)).code == "ready" and not any("tenant" in one.text for one in (await ask(waiting)).checks)
    limit = {"max_queued": None, "actor": "anna", "reason": ""}
    await limit_tenant(engine.database, "default", max_running=1, **limit)
    found = await ask(waiting)
    assert (found.code, found.moves) == ("tenant_limit_reached", ("holdfast tenant limit default --max-running 2",))
    assert "tenant default is at its limit, 1/1 running" in found.headline
    assert not await harness.claim(5)
    await harness.settle(lease, Completed(b"1"))
    assert (await ask(waiting)).code == "ready"
    assert any(
        one.ok and one.text == "tenant default is below its limit (0/1 running)" for one in (await ask(waiting)).checks
    )


async def test_a_queue_that_used_up_its_starts(harness, engine, ask):
    first, second = await queued(harness, queue="mail"), await queued(harness, queue="mail")
    await queues.limit(
        engine, DEFAULT_TENANT_ID, "mail", max_running=None, starts_per_second=0.001, actor="anna", reason=""
    )
    await harness.claim_task(first)
    found = await ask(second)
    assert (found.code, "0.001 starts per second" in found.headline) == ("rate_limited", True)


async def test_every_slot_is_busy(harness, engine, ask, register):
    worker_id = await register(slots=1)
    held, waiting = await queued(harness), await queued(harness)
    await engine.database.fetch(sql("claim_task"), int(held), worker_id, 10.0, 0, [ACTION], None)
    found = await ask(waiting)
    assert (found.code, "1/1 slots busy on 1 worker" in found.headline) == ("slots_full", True)


async def test_just_queued_and_ready(harness, ask, register, clock):
    await register()
    task_id = await queued(harness)
    assert (await ask(task_id)).headline.endswith("a worker should claim it within moments.")
    await clock.advance(seconds=10)
    assert (await ask(task_id)).headline.startswith("Ready: nothing holds it back, first in line")


async def test_a_delayed_task_and_one_nobody_promoted(harness, ask, clock):
    task_id = (await harness.enqueue(a_delayed_task(300))).task_id
    assert re.match(r"Not due yet: it becomes due in (5m 00s|4m 5\ds)", (await ask(task_id)).headline)
    await clock.advance("10m")
    assert (await ask(task_id)).code == "loops_missing"


async def test_a_reserved_task(harness, engine, ask):
    task_id = await queued(harness)
    await harness.reserve(task_id)
    found = await ask(task_id)
    assert (found.state, found.code) == ("queued", "reserved")


async def test_a_running_task_shows_worker_lease_and_timeout(harness, ask, clock):
    lease = await a_running_task(harness, worker="web-1", timeout_seconds=60.0)
    await clock.advance(seconds=4)
    found = await ask(lease.task_id)
    assert re.fullmatch(r"Running for [45]\.\d s: attempt 1 on web-1\.", found.headline)
    beat, left, timeout = found.evidence
    assert beat.startswith("web-1 last sent a heartbeat ")
    assert re.fullmatch(r"lease expires in [56]\.\d s", left)
    assert re.fullmatch(r"timeout in 5[56]\.\d s of 1m 00s", timeout)


async def test_a_running_task_tells_its_progress(harness, engine, ask):
    lease = await a_running_task(harness)
    note = '{"done": 3, "total": 10, "message": "pages"}'
    await engine.database.fetch(sql("add_notes"), [int(lease.task_id)], [1], [lease.token], ["progress"], [note])
    assert "3/10 pages" in (await ask(lease.task_id)).headline


async def test_a_running_task_asked_to_stop_names_who(harness, ask):
    lease = await a_running_task(harness)
    await harness.cancel(lease.task_id, actor="anna", reason="wrong day")
    found = await ask(lease.task_id)
    assert (found.code, "Stop requested by anna" in found.headline) == ("cancel_requested", True)


async def test_a_worker_that_misses_two_beats_is_late(harness, ask, clock):
    lease = await a_running_task(harness)
    await clock.advance(seconds=lease.seconds * 0.6)
    assert (await ask(lease.task_id)).code == "leased_healthy"
    await clock.advance(seconds=lease.seconds * 0.1)
    found = await ask(lease.task_id)
    assert (found.code, "counts as lost" in found.headline) == ("heartbeat_late", True)


async def test_a_lease_that_expired(harness, ask, clock):
    lease = await a_running_task(harness)
    await clock.advance(seconds=lease.seconds + 1)
    assert (await ask(lease.task_id)).code == "lease_expired"
    await clock.advance(seconds=60)
    assert (await ask(lease.task_id)).code == "loops_missing"


async def test_a_retrying_task(harness, ask):
    found = await ask(await a_retrying_task(harness, max_retries=3))
    assert (found.state, found.code) == ("retrying", "backoff")
    assert "connection reset by peer; retry 1 of 3 follows in" in found.headline


async def test_a_task_that_is_due_later_says_what_would_hold_it_back_then(harness, ask):
    retrying = await a_retrying_task(harness, max_retries=3)
    delayed = (await harness.enqueue(a_delayed_task(60))).task_id

    async def both_say(words: str) -> None:
        for task_id, code, due in (
            (retrying, "backoff", "retry 1 of 3 is due in"),
            (delayed, "scheduled_for", "due in"),
        ):
            found = await ask(task_id)
            assert found.code == code and due in found.headline and words in found.headline
            assert [check.ok for check in found.checks].count(False) == 2

    await harness.pause(actor="ops", reason="smtp is down")
    await both_say("Held back: ops paused queue default")
    await harness.resume()
    await harness.guard(ACTION, breaker=Breaker())
    await harness.steer(ACTION, CircuitState.OPEN, actor="ops", reason="the bank is down")
    await both_say("Held back: ops opened the breaker of shop.charge")
    await harness.steer(ACTION, CircuitState.CLOSED)
    await harness.retire("first")
    await both_say("Waiting for a worker: no live worker runs shop.charge")


async def test_a_retried_task_remembers_its_failure(harness, ask, clock):
    task_id = await a_retrying_task(harness)
    await clock.advance("1m")
    await harness.reconcile_once()
    found = await ask(task_id)
    assert found.state == "queued"
    assert any(line.startswith("attempt 1, ") and " failed" in line for line in found.evidence), found.evidence


async def test_a_task_out_of_retries(harness, ask):
    found = await ask(await a_failed_task(harness))
    assert (found.state, found.code) == ("failed", "attempts_exhausted")
    assert "Stopped: no retries allowed" in found.headline


async def test_a_task_that_cannot_be_retried(harness, ask):
    lease = await a_running_task(harness)
    await harness.settle(lease, Failed(a_failure("validation: no such order", type="builtins.ValueError")))
    found = await ask(lease.task_id)
    assert found.code == "non_retryable"
    assert found.headline.startswith("Failed for good after 1 attempt: ValueError: validation: no such order. Stopped:")


async def test_a_canceled_task(harness, ask):
    found = await ask(await a_canceled_task(harness))
    assert (found.state, "by test before it started" in found.headline) == ("canceled", True)


async def test_a_canceled_running_task_keeps_who_and_why(harness, ask):
    lease = await a_running_task(harness)
    await harness.cancel(lease.task_id, actor="anna", reason="wrong day")
    await harness.settle(lease, Canceled())
    headline = (await ask(lease.task_id)).headline
    assert headline.endswith("ago by anna after 1 attempt: wrong day.")


async def test_a_completed_task(harness, ask):
    found = await ask(await a_completed_task(harness, output=b'{"charged":5}'))
    assert found.state == "completed"
    assert "output: 13 bytes of JSON" in found.evidence


async def test_a_revived_task_is_explained_as_it_is_now(harness, ask):
    task_id = await a_failed_task(harness)
    await harness.redrive(task_id)
    assert (await ask(task_id)).state == "queued"
    lease = await harness.claim_task(task_id)
    await harness.settle(lease, Completed(b"1"))
    assert (await ask(task_id)).state == "completed"


async def test_an_unknown_task(ask):
    with pytest.raises(NotFound) as caught:
        await ask("999")
    assert caught.value.code == "task_not_found"


async def test_the_client_explains_and_prints_the_headline(holdfast_url, capsys):
    app = hf.App("shop", settings=hf.Settings(url=holdfast_url))

    @app.action
    async def charge() -> None: ...

    async with app.client() as client:
        task = await client.enqueue(charge)
        print(await task.why())
    assert capsys.readouterr().out.startswith("Waiting for a worker: no live worker runs shop.charge")


def test_the_blocking_client_explains_too(holdfast_url):
    app = hf.App("shop", settings=hf.Settings(url=holdfast_url))

    @app.action
    def charge() -> None: ...

    with app.sync_client() as client:
        task = client.enqueue(charge)
        assert task.why().code == client.why(task.task_id).code == "no_worker"
