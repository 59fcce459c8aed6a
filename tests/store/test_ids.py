"""Ids are not used up by what is said again, and go on past what four bytes hold."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import asyncpg
import pytest
from tests.by_sql import declare

from holdfast.core.limits.breaker import Breaker
from holdfast.core.limits.quota import Quota
from holdfast.core.tasks.outcome import Completed
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.core.values.bounds import ID_MAX, is_id
from holdfast.engine.queries.checkup import Level, check_up
from holdfast.testing.factories import a_task

FOUR_BYTES = 2**31
DRAWN = """
select s.sequencename::text, s.last_value from pg_sequences s
where s.schemaname = 'holdfast' and s.sequencename not in ('task_id', 'event_seq_seq', 'audit_seq_seq')
"""
SPAN_LOCK = "select count(*) from pg_locks where locktype = 'advisory' and classid = 1752132967"


async def ids_drawn(harness):
    return dict(await harness.engine.database.fetch(DRAWN))


async def use_up(harness, *, left):
    """Leave so many ids to what has four bytes for them, and take the others past that."""
    await harness.engine.database.fetch(
        "select setval(s.seqrelid, $1) from pg_sequence s join pg_class c on c.oid = s.seqrelid"
        " where c.relnamespace = 'holdfast'::regnamespace and c.relname not in ('task_id', 'span')",
        FOUR_BYTES - 1 - left,
    )


async def say_everything(harness, key=None):
    engine = harness.engine
    await declare(engine, "shop.charge")
    await engine.catalog.declare(1, "shop.mail", "default", RetryPolicy(), "2.0", launcher=None)
    await engine.database.fetch("select holdfast.enqueue('shop.charge', key => $1)", key)
    await engine.database.fetch("select holdfast.enqueue('shop.mail', queue => 'mail')")
    await harness.guard("shop.mail", breaker=Breaker(), quota=Quota(retries=5, window_seconds=60.0))
    await harness.quota(Quota(retries=100, window_seconds=60.0), queue="default")


async def test_what_is_said_again_draws_no_ids(harness):
    await say_everything(harness)
    before = await ids_drawn(harness)
    for _ in range(3):
        await say_everything(harness)
    assert await ids_drawn(harness) == before


async def test_the_engine_works_on_where_four_bytes_end(harness):
    await use_up(harness, left=20)
    for number in range(30):
        await say_everything(harness, key=f"order-{number}")
    workers = {await harness.worker_id(f"worker-{number}") for number in range(30)}
    assert len(workers) == 30 and max(workers) > FOUR_BYTES
    task = await harness.enqueue(a_task())
    lease = await harness.claim_task(task.task_id, worker=f"worker-{29}")
    await harness.heartbeat(lease)
    await harness.settle(lease, Completed(b"1"))
    assert (await harness.task(task.task_id)).state == "completed"
    [attempt] = await harness.attempts(task.task_id)
    assert attempt.worker_id == max(workers)


async def test_a_check_up_names_sequences_that_are_more_than_half_used(harness, engine):
    async def finding():
        found = await check_up(engine.database, now=datetime.now(UTC))
        return next(one for one in found if one.name == "ids")

    assert (await finding()).level == Level.OK
    await engine.database.fetch("select setval('holdfast.lane_lane_id_seq', $1)", FOUR_BYTES * 3 // 4)
    found = await finding()
    assert found.level == Level.WARNING and "lane_lane_id_seq 75 %" in found.detail and "queue" not in found.detail


def test_an_id_has_as_many_digits_as_eight_bytes_hold():
    assert is_id("1000000000") and is_id(str(ID_MAX))
    assert not is_id(str(ID_MAX + 1)) and not is_id("1" * 20) and not is_id("-1") and not is_id("٣")


async def test_who_is_canceled_while_taking_a_span_keeps_nobody_waiting(engine, eventually):
    database = engine.database
    async with database.transaction() as holder, database.session() as taker:
        # Whoever draws from the sequence waits for this transaction.
        await holder.execute("alter sequence holdfast.span cache 1")
        pid = taker.connection.get_server_pid()
        taking = asyncio.ensure_future(taker.fetchval("select holdfast.take_span(5)"))
        await eventually(
            lambda: database.fetchval("select wait_event_type = 'Lock' from pg_stat_activity where pid = $1", pid)
        )
        assert await database.fetchval(SPAN_LOCK) == 1
        await database.fetch("select pg_cancel_backend($1)", pid)
        with pytest.raises(asyncpg.QueryCanceledError):
            await taking
        assert not taker.is_closed() and await database.fetchval(SPAN_LOCK) == 0
    assert await database.fetchval("select holdfast.take_span(5)")


async def test_a_span_is_taken_for_a_moment_and_not_for_a_transaction(engine):
    database = engine.database
    async with database.transaction() as first:
        taken = await first.fetchval("select holdfast.take_span(5)")
        assert await database.fetchval("select holdfast.take_span(5)") == taken + 5
