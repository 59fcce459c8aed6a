"""What guards the functions of the schema: what others call from SQL, and what statements leave to them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
from tests.datasets.hands import completed, declared, rows, seen, staged
from tests.guards.checks.hinting import _hints, _on
from tests.guards.checks.stage import Stage, another_tenant, check, elsewhere, refuses, reserved
from tests.guards.checks.writing import lost_and_claimed_again

from holdfast.core.tasks.retry import RetryPolicy
from holdfast.store.statements import sql
from holdfast.testing.factories import a_completed_task, a_running_task, a_task

CALL = "select holdfast.enqueue('shop.charge', $1, key => $2, tenant => $3)"
HIDE = """
    create function hide() returns trigger language plpgsql as $$
    begin
      if tg_when = 'BEFORE' then
        insert into holdfast.idempotency (tenant_id, key, task_id, digest) values (1, 'order-7', 7, '');
      else
        delete from holdfast.idempotency;
      end if;
      return null;
    end $$;
    create trigger show before insert on holdfast.idempotency for each statement
      when (pg_trigger_depth() = 0) execute function hide();
    create trigger hide after insert on holdfast.idempotency for each statement
      when (pg_trigger_depth() = 0) execute function hide()
"""
"""The key is there for whoever asks for it and gone for whoever looks for its task."""

SPAN_LOCK = "1752132967, 0"


async def enqueued(stage: Stage, number: int = 7, *, key: str | None = None, tenant: str = "default") -> Any:
    await declared_in(stage, tenant, "shop.charge")
    return await stage.value(CALL, f'{{"order": {number}}}', key, tenant)


async def declared_in(stage: Stage, tenant: str, action: str) -> None:
    """Declare an action and nothing else: its queue and its lane are not there yet."""
    await stage.value(
        "with p as ("
        "  insert into holdfast.policy as p (tenant_id, digest, max_retries, max_losses, content)"
        "  select tenant_id, '\\x01', 3, 3, '{}' from holdfast.tenant where name = $1"
        "  on conflict (tenant_id, digest) do update set max_retries = 3"
        "  returning tenant_id, policy_id"
        ") insert into holdfast.action (tenant_id, name, queue, policy_id)"
        " select tenant_id, $2, 'default', policy_id from p on conflict do nothing",
        tenant,
        action,
    )


@check
async def sql_refuses_an_action_that_no_worker_declared(stage: Stage) -> None:
    with refuses(asyncpg.InvalidParameterValueError):
        await stage.value("select holdfast.enqueue('shop.mail')")


@check
async def a_reservation_is_no_lease_to_assert(stage: Stage) -> None:
    reservation = await reserved(stage)
    with refuses(asyncpg.PostgresError):
        await stage.engine.database.fetch(sql("assert_lease"), str(reservation.task_id), reservation.lease_token)


@check
async def a_key_stands_for_one_task_in_sql(stage: Stage) -> None:
    first = await enqueued(stage, key="order-7")
    assert await enqueued(stage, key="order-7") == first
    with refuses(asyncpg.UniqueViolationError):
        await enqueued(stage, 8, key="order-7")
    assert await stage.value("select count(*) from holdfast.body") == 1


@check
async def a_key_that_is_gone_is_never_answered_with_nothing(stage: Stage) -> None:
    """However often it is deleted between the conflict and the look."""
    async with stage.engine.database.session() as session:
        await session.execute(HIDE)
    with refuses(asyncpg.SerializationError):
        await enqueued(stage, key="order-7")


@check
async def two_who_intern_the_same_names_in_sql_both_enqueue(stage: Stage) -> None:
    """Queue and lane are new to both."""
    await declared_in(stage, "default", "shop.mail")
    for call in ("select holdfast.enqueue('shop.mail')", "select holdfast.enqueue('shop.mail', queue => 'money')"):
        async with stage.engine.database.transaction() as session:
            first = await session.fetchval(call)
            late = asyncio.ensure_future(stage.value(call))
            await stage.waits(late)
            assert not late.done()
        assert await late != first


@check
async def sql_enqueues_within_its_tenant(stage: Stage) -> None:
    theirs = await elsewhere(stage)
    await theirs.engine.catalog.declare(theirs.engine.tenant_id, "shop.mail", "money", RetryPolicy(), "")
    await declared_in(stage, "default", "shop.mail")
    for tenant in ("default", "other", "default", "other"):
        await enqueued(stage, key="order-7", tenant=tenant)
        await stage.value("select holdfast.enqueue('shop.mail', tenant => $1)", tenant)
    assert await stage.value("select count(*) from holdfast.body where key = 'order-7'") == 2
    assert not await stage.value(
        "select count(*) from holdfast.body b join holdfast.policy p using (policy_id)"
        " join holdfast.lane l using (lane_id) join holdfast.queue q using (queue_id)"
        " where (p.tenant_id, l.tenant_id, q.tenant_id) <> (b.tenant_id, b.tenant_id, b.tenant_id)"
    )
    assert not await stage.value(
        "select count(*) from holdfast.lane l join holdfast.queue q using (queue_id) where q.tenant_id <> l.tenant_id"
    )
    assert await stage.value("select count(*) from holdfast.queue where name = 'money'") == 1


@check
async def a_key_of_sql_belongs_to_its_tenant(stage: Stage) -> None:
    await another_tenant(stage)
    task_ids = [[await enqueued(stage, key="order-7", tenant=name) for _ in range(2)] for name in ("default", "other")]
    assert [len(set(same)) for same in task_ids] == [1, 1] and task_ids[0] != task_ids[1]


@check
async def one_span_is_taken_at_a_time(stage: Stage) -> None:
    async with stage.engine.database.session() as session:
        await session.fetch(f"select pg_advisory_lock({SPAN_LOCK})")
        late = asyncio.ensure_future(stage.value("select holdfast.take_span(5)"))
        await stage.waits(late)
        assert not late.done()
        await session.fetch(f"select pg_advisory_unlock({SPAN_LOCK})")
    first = await late
    assert await stage.value("select holdfast.take_span(1)") == first + 5


@check
async def who_took_a_span_or_failed_to_keeps_nobody_waiting(stage: Stage) -> None:
    async with stage.engine.database.session() as session, stage.impatient() as other:
        for length in (5, -(10**12)):
            try:
                async with session.transaction():
                    await session.fetch("select holdfast.take_span($1::bigint)", length)
                    # Its transaction goes on: the next span waits for the sequence, not for the run that is stored.
                    async with other.transaction():
                        assert await other.fetchval(f"select pg_try_advisory_xact_lock({SPAN_LOCK})"), length
            except asyncpg.NumericValueOutOfRangeError:
                assert length < 0
            async with other.transaction():
                assert await other.fetchval(f"select pg_try_advisory_xact_lock({SPAN_LOCK})"), length


BEGIN_EPOCH = "select why from holdfast.begin_epoch()"
OTHER_CLUSTER = "update holdfast.epoch set system_identifier = system_identifier + 1"


async def _open_connections(stage: Stage) -> None:
    """Have a few connections ready: a new one would notice the other cluster itself, and begin its epoch."""
    async with AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(stage.engine.database.session())


@check
async def one_process_begins_an_epoch(stage: Stage) -> None:
    await _open_connections(stage)
    await stage.value(OTHER_CLUSTER)
    async with stage.engine.database.transaction() as session:
        assert await session.fetchval(BEGIN_EPOCH) == "restored"
        late = asyncio.ensure_future(stage.value(BEGIN_EPOCH))
        await stage.waits(late)
    assert await late is None
    assert await stage.value("select count(*) from holdfast.epoch") == 2


@check
async def a_restored_database_takes_leases_and_nothing_else(stage: Stage) -> None:
    await a_task_queued_and_one_that_runs(stage)
    worker_id = await stage.harness.worker_id("left")
    await stage.harness.retire("left")
    ended = "select ended_at from holdfast.worker where worker_id = $1"
    before = await stage.value(ended, worker_id)
    await stage.clock.advance(seconds=5)
    await stage.value(OTHER_CLUSTER)
    assert await stage.value(BEGIN_EPOCH) == "restored"
    assert await stage.value("select count(*) from holdfast.worker where state <> 'gone'") == 0
    assert before == await stage.value(ended, worker_id)


async def a_task_queued_and_one_that_runs(stage: Stage) -> None:
    await a_running_task(stage.harness)
    await stage.harness.enqueue(a_task())


@check
async def no_id_is_drawn_while_an_epoch_begins(stage: Stage) -> None:
    await _open_connections(stage)
    async with stage.impatient() as other, stage.engine.database.transaction() as session:
        await session.fetch(OTHER_CLUSTER)
        await session.fetch(BEGIN_EPOCH)
        for lock in (SPAN_LOCK, "1752132966, 0"):
            async with other.transaction():
                assert not await other.fetchval(f"select pg_try_advisory_xact_lock({lock})")


async def counted_beside(stage: Stage, verb: str) -> int:
    """How many are counted by a pass, and by another that begins before the first commits."""
    await a_completed_task(stage.harness)
    async with stage.engine.database.transaction() as session:
        assert await session.fetchval(sql("count_completed"), False)
        late = asyncio.ensure_future(stage.value(f"select holdfast.{verb}"))
        await stage.waits(late)
    await late
    return int(await stage.value("select sum(tasks) from holdfast.completed"))


@check
async def two_who_count_count_nothing_twice(stage: Stage) -> None:
    assert await counted_beside(stage, "count_completed(true)") == 1


@check
async def who_counts_anew_waits_for_who_counts(stage: Stage) -> None:
    assert await counted_beside(stage, "recount_completed()") == 1


@check
async def a_pass_that_counts_does_not_wait_for_another(stage: Stage) -> None:
    await a_completed_task(stage.harness)
    async with stage.engine.database.transaction() as session, stage.impatient() as other:
        assert await session.fetchval(sql("count_completed"), False)
        assert not await other.fetchval(sql("count_completed"), False)


@check
async def a_task_that_waits_for_its_time_has_no_hint(stage: Stage) -> None:
    await _on(stage)
    await stage.harness.enqueue(a_task(delay_seconds=60))
    assert await _hints(stage) == 0


@check
async def rows_of_a_lost_attempt_are_not_committed_by_the_next(stage: Stage) -> None:
    generation = await declared(stage.engine)
    lease = await a_running_task(stage.harness, max_losses=3)
    await staged(stage.engine, lease, generation, rows(1))
    again = await lost_and_claimed_again(stage, lease)
    commit = await staged(stage.engine, again, generation, rows(2))
    await stage.harness.settle(again, completed(commit))
    assert [one for one, _ in await seen(stage.engine)] == [2]


@check
async def a_row_that_is_there_is_not_added_again(stage: Stage) -> None:
    generation = await declared(stage.engine)
    for _ in range(2):
        lease = await a_running_task(stage.harness)
        commit = await staged(stage.engine, lease, generation, rows(1))
        await stage.harness.settle(lease, completed(commit))
        assert await stage.state(lease.task_id) == "completed"
    assert len(await seen(stage.engine)) == 1
