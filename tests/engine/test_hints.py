"""The outbox of hints: off by default, written with the change that makes a task claimable, bounded, and made good."""

from __future__ import annotations

import asyncio
import json
import uuid

import asyncpg
import pytest
from tests.by_sql import declare
from tests.core.flows import a_flow

from holdfast.core.tasks.outcome import Completed, Released
from holdfast.engine.wakeups.outbox import (
    read_wake,
    replenish_once,
    return_hints,
    take_hints,
    tell_away,
    tell_back,
    write_hints,
)
from holdfast.errors import Invalid
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.store.statements import sql
from holdfast.testing.factories import a_delayed_task, a_failed_task, a_retrying_task, a_running_task, a_task

RESEND_SECONDS = 30.0


@pytest.fixture
async def hints_on(engine):
    await write_hints(engine, True, actor="test", reason="")


async def hinted(engine) -> list[str]:
    return [str(row[0]) for row in await engine.database.fetch("select task_id from holdfast.hint order by task_id")]


async def taken(engine) -> list[str]:
    """What a relay would send now."""
    return sorted(str(hint.task_id) for hint in await take_hints(engine.database, resend_seconds=RESEND_SECONDS))


async def test_without_another_carrier_no_hint_is_written(engine, harness):
    await harness.enqueue_many(a_task(), [{}] * 3)
    await a_retrying_task(harness)
    assert await hinted(engine) == []
    assert not (await read_wake(engine.database)).is_on


async def test_without_another_carrier_an_enqueue_runs_no_trigger(engine, harness):
    """The plain path is what it was: the same statement, and the server calls nothing beside it."""

    async def triggers() -> int:
        lane = await engine.catalog.lane_id(DEFAULT_TENANT_ID, "default", "shop.charge")
        policy = await engine.catalog.policy_id(DEFAULT_TENANT_ID, a_task().policy)
        arguments = (1, lane, policy, 3, 3, 5, 0.0, b"{}", None)
        plan = await engine.database.fetchval(f"explain (analyze, format json) {sql('enqueue_one')}", *arguments)
        return len(json.loads(plan)[0]["Triggers"])

    assert await triggers() == 0
    await write_hints(engine, True, actor="test", reason="")
    assert await triggers() == 1


@pytest.mark.usefixtures("hints_on")
async def test_a_hint_is_committed_with_its_task_or_not_at_all(engine, harness):
    with pytest.raises(RuntimeError, match="changed my mind"):
        async with engine.database.transaction() as session:
            await harness.enqueue(a_task(), session=session)
            assert await session.fetchval("select count(*) from holdfast.hint") == 1
            raise RuntimeError("changed my mind")
    assert await hinted(engine) == []


@pytest.mark.usefixtures("hints_on")
async def test_every_way_to_become_claimable_writes_a_hint(engine, harness, clock):
    async def fresh(task_id: str) -> bool:
        found = await taken(engine)
        assert set(found) <= {task_id}
        return task_id in found

    enqueued = await harness.enqueue(a_task())
    assert await fresh(enqueued.task_id)
    keyed = await harness.enqueue(a_task(key="once"))
    assert await fresh(keyed.task_id)
    await declare(engine, "shop.charge")
    by_sql = await engine.database.fetchval("select holdfast.enqueue('shop.charge')")
    assert await fresh(by_sql)
    delayed = await harness.enqueue(a_delayed_task(5))
    assert not await fresh(delayed.task_id)
    await clock.advance(seconds=6)
    await harness.reconcile_once()
    assert await fresh(delayed.task_id)
    retrying = await a_retrying_task(harness, base_backoff_secs=5)
    await clock.advance(seconds=6)
    await harness.reconcile_once()
    assert await fresh(retrying)
    at_once = await a_retrying_task(harness, base_backoff_secs=3600)
    await harness.retry(at_once)
    assert await fresh(at_once)
    released = await a_running_task(harness)
    await harness.settle(released, Released())
    assert await fresh(released.task_id)
    failed = await a_failed_task(harness)
    await harness.redrive(failed)
    assert await fresh(failed)


@pytest.mark.usefixtures("hints_on")
async def test_a_released_node_writes_a_hint(engine, harness):
    await harness.runs.start(a_flow("a>b"))
    (first,) = await taken(engine)
    await harness.settle(await harness.claim_one(), Completed(b"null"))
    (second,) = await taken(engine)
    assert first != second


@pytest.mark.usefixtures("hints_on")
async def test_a_lost_attempt_writes_a_hint_for_the_next(engine, harness, clock):
    lease = await a_running_task(harness)
    await taken(engine)
    await clock.advance(seconds=lease.seconds + 1)
    await harness.reap_once()
    (hint,) = await take_hints(engine.database, resend_seconds=RESEND_SECONDS)
    assert (str(hint.task_id), hint.attempt) == (lease.task_id, 2)


async def test_a_queue_has_no_more_hints_than_it_may(engine, harness):
    await write_hints(engine, True, hints_max=3, actor="test", reason="")
    await harness.enqueue_many(a_task(), [{}] * 5)
    await harness.enqueue(a_task())
    await harness.enqueue_many(a_task(queue="other"), [{}] * 2)
    assert len(await hinted(engine)) == 3 + 2


async def test_whatever_found_no_room_gets_its_hint_later_the_most_urgent_first(engine, harness):
    await write_hints(engine, True, hints_max=2, actor="test", reason="")
    first = [one.task_id for one in await harness.enqueue_many(a_task(), [{}] * 2)]
    calm = await harness.enqueue(a_task(priority=7))
    urgent = await harness.enqueue(a_task(priority=1))
    assert await hinted(engine) == first
    await harness.settle(await harness.claim_task(first[0]), Completed(b"null"))
    assert await replenish_once(engine.database) == 1
    assert await hinted(engine) == [first[1], urgent.task_id]
    assert calm.task_id not in await hinted(engine)


@pytest.mark.usefixtures("hints_on")
async def test_a_lost_hint_comes_again_ever_later_while_its_task_waits(engine, harness, clock):
    task = await harness.enqueue(a_task())
    assert await taken(engine) == [task.task_id]
    for pause in (RESEND_SECONDS, 2 * RESEND_SECONDS, 4 * RESEND_SECONDS):
        await clock.advance(seconds=pause - 1)
        assert await taken(engine) == []
        await clock.advance(seconds=1)
        assert await taken(engine) == [task.task_id]
    await harness.claim_task(task.task_id)
    await clock.advance(seconds=3600)
    assert await taken(engine) == [] == await hinted(engine)


@pytest.mark.usefixtures("hints_on")
async def test_a_hint_that_could_not_be_sent_is_due_at_once(engine, harness):
    await harness.enqueue(a_task())
    hints = await take_hints(engine.database, resend_seconds=RESEND_SECONDS)
    await return_hints(engine.database, hints)
    assert await take_hints(engine.database, resend_seconds=RESEND_SECONDS) == hints


@pytest.mark.usefixtures("hints_on")
async def test_relays_share_the_hints(engine, harness):
    await harness.enqueue_many(a_task(), [{}] * 60)
    passes = [take_hints(engine.database, resend_seconds=RESEND_SECONDS, limit=20) for _ in range(6)]
    found = [hint.task_id for hints in await asyncio.gather(*passes) for hint in hints]
    found += [hint.task_id for hint in await take_hints(engine.database, resend_seconds=RESEND_SECONDS)]
    assert len(found) == len(set(found)) == 60


@pytest.mark.usefixtures("hints_on")
async def test_a_hint_that_somebody_deleted_is_written_again(engine, harness):
    task = await harness.enqueue(a_task())
    await engine.database.fetch("delete from holdfast.hint")
    assert await replenish_once(engine.database) == 1
    assert await taken(engine) == [task.task_id]


@pytest.mark.usefixtures("hints_on")
async def test_turning_hints_off_forgets_them_and_writes_none(engine, harness):
    await harness.enqueue(a_task())
    view = await write_hints(engine, False, actor="ann", reason="back to NOTIFY")
    await harness.enqueue(a_task())
    assert not view.is_on and view.outstanding == 0
    assert await hinted(engine) == []
    assert await replenish_once(engine.database) == 0
    said = await engine.database.fetchrow("select actor, verb, reason from holdfast.audit order by seq desc limit 1")
    assert tuple(said) == ("ann", "wake.off", "back to NOTIFY")


async def test_a_bound_that_makes_no_sense_is_refused(engine):
    with pytest.raises(Invalid):
        await write_hints(engine, True, hints_max=0, actor="test", reason="")
    assert not (await read_wake(engine.database)).is_on


@pytest.mark.usefixtures("hints_on")
async def test_a_carrier_is_away_since_it_first_was(engine, clock):
    await tell_away(engine.database, "sqs", "refused")
    await clock.advance(seconds=180)
    await tell_away(engine.database, "sqs", "still refused")
    view = await read_wake(engine.database)
    assert view.away_seconds is not None and view.away_seconds >= 180
    assert (view.carrier, view.away_detail) == ("sqs", "still refused")
    await tell_back(engine.database, "sqs")
    assert (await read_wake(engine.database)).away_seconds is None


@pytest.mark.superuser
@pytest.mark.usefixtures("hints_on")
async def test_whoever_may_enqueue_needs_no_right_to_the_outbox(engine, harness, holdfast_url):
    await harness.enqueue(a_task())
    role = f"enqueuer_{uuid.uuid4().hex}"
    await declare(engine, "shop.charge")
    connection = await asyncpg.connect(holdfast_url)
    try:
        await connection.execute(
            f"create role {role}; grant usage on schema holdfast to {role}; "
            f"grant select, insert on all tables in schema holdfast to {role}; "
            f"grant usage on all sequences in schema holdfast to {role}; "
            f"revoke all on holdfast.hint, holdfast.wake from {role}; "
            f"select holdfast.secure_tenants(); set role {role}"
        )
        task_id = await connection.fetchval("select holdfast.enqueue('shop.charge')")
    finally:
        await connection.execute(f"reset role; drop owned by {role}; drop role {role}")
        await connection.close()
    assert task_id in await hinted(engine)
