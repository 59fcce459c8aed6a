"""A replica that lags is promoted, a backup is started beside its original, a dump is restored elsewhere.

Nothing old is mistaken for something new, and everything goes on."""

from __future__ import annotations

from datetime import UTC, datetime

import asyncpg
import pytest
from tests.faults.clusters import some_clusters
from tests.waiting import eventually

from holdfast.core.tasks.outcome import Completed
from holdfast.engine.audit import list_audit, verify_audit
from holdfast.engine.effects.gate import OpenEffect, Sender, open_effect
from holdfast.engine.engine import Engine
from holdfast.engine.limits.queues import list_queues
from holdfast.engine.queries.checkup import check_up
from holdfast.engine.queries.events import event_tail, told_after
from holdfast.engine.queries.verify import verify
from holdfast.errors import Conflict, Unavailable
from holdfast.settings.settings import Settings
from holdfast.testing.dispatcher import Dispatcher
from holdfast.testing.factories import a_task

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("clusters")]


@pytest.fixture(scope="module")
def all_clusters():
    with some_clusters() as made:
        made.prepare()
        yield made


@pytest.fixture
def clusters(all_clusters):
    yield all_clusters
    all_clusters.close()


async def asked_again(verb, *, times=50):
    """Ask until the server is there and known."""
    for _ in range(times):
        try:
            return await verb()
        except Unavailable:
            pass
    return await verb()


async def enqueued(dispatcher, number):
    return {int(one.task_id) for one in await dispatcher.enqueue_many(a_task(), [{}] * number)}


async def completed(dispatcher, number=1, worker="first"):
    leases = await dispatcher.claim(number, worker=worker)
    for lease in leases:
        await dispatcher.settle(lease, Completed(b"1"))
    assert len(leases) == number


async def kinds_after(engine, cursor):
    return [event.kind for event in (await told_after(engine.database, 1, cursor)).events]


async def completed_count(engine):
    return sum(queue.completed for queue in await list_queues(engine.database, 1))


async def causes(engine):
    return [row[0] for row in await engine.database.fetch("select cause from holdfast.epoch order by epoch")]


async def says_what_happened(engine, cause):
    """The audit log, the check-up and the invariants all know."""
    assert (await causes(engine))[-1] == cause
    [row] = [row for row in await list_audit(engine.database, 1) if row.verb == "server.replace"]
    assert row.actor == "holdfast:epoch"
    found = next(one for one in await check_up(engine.database, now=datetime.now(UTC)) if one.name == "epoch")
    assert cause in found.detail
    verified = await verify(engine.database)
    assert verified.is_sound, verified.violations
    assert "the_server_was_not_replaced" in {warning.name for warning in verified.warnings}


async def replicated(primary, replica):
    async with (
        asyncpg.create_pool(primary.url, min_size=1) as there,
        asyncpg.create_pool(replica.url, min_size=1) as here,
    ):
        place = await there.fetchval("select pg_current_wal_lsn()")
        await eventually(lambda: here.fetchval("select pg_last_wal_replay_lsn() >= $1", place))


async def cut_off(replica):
    """From here on the replica receives nothing, as if it lagged."""
    connection = await asyncpg.connect(replica.url)
    try:
        await connection.execute("alter system set primary_conninfo = ''")
        await connection.execute("select pg_reload_conf()")
        await eventually(lambda: connection.fetchval("select count(*) = 0 from pg_stat_wal_receiver"))
    finally:
        await connection.close()


async def test_a_replica_that_lags_is_promoted(clusters):
    primary = clusters.migrated()
    both = "postgresql://postgres@127.0.0.1:{},127.0.0.1:{}/postgres?target_session_attrs=read-write"
    async with Engine(primary.url, Settings()):
        pass
    replica = clusters.copy(primary, "-R")
    async with Engine(both.format(primary.port, replica.port), Settings()) as engine:
        dispatcher = Dispatcher(engine)
        kept = await enqueued(dispatcher, 6)
        await completed(dispatcher, 2)
        known = await dispatcher.claim_one(worker="known")
        await replicated(primary, replica)
        await cut_off(replica)

        lost = await enqueued(dispatcher, 300)
        await dispatcher.enqueue(a_task(action="shop.mail", queue="mail"))
        doubtful = await dispatcher.claim_one(worker="unknown")
        await completed(dispatcher, 3)
        lost_worker = await dispatcher.worker_id("unknown")
        cursor = await event_tail(engine.database)
        primary.crash()
        replica.promote()

        fresh = await asked_again(lambda: enqueued(dispatcher, 300))
        assert not fresh & (kept | lost) and min(fresh) > max(lost)
        assert await causes(engine) == ["created", "promoted"]
        # A name that was interned in the last moments is interned anew, for callers in this very process.
        mail = await dispatcher.enqueue(a_task(action="shop.mail", queue="mail"))
        assert (await dispatcher.task(mail.task_id)).queue == "mail"
        # The server does not know what it did not receive, and gives nobody the same number.
        beat = await dispatcher.heartbeat(doubtful)
        assert beat.lost == {int(doubtful.task_id)} and beat.worker_state is None
        with pytest.raises(Conflict):
            await dispatcher.settle(doubtful, Completed(b"1"))
        assert await dispatcher.worker_id("newcomer") > lost_worker
        # What it did receive goes on: nothing that runs is run twice for a promotion.
        assert not (await dispatcher.heartbeat(known)).lost
        await dispatcher.settle(known, Completed(b"1"))
        await completed(dispatcher, 4, worker="newcomer")
        assert (await kinds_after(engine, cursor)).count("task.completed") == 5
        assert await completed_count(engine) == 2 + 5
        await says_what_happened(engine, "promoted")
        assert (await verify_audit(engine.database, 1)).is_sound


async def effect_of(engine, dispatcher):
    """Enqueue a task that sends something; answers its id and the key it went under."""
    task = await dispatcher.enqueue(a_task())
    lease = await dispatcher.claim_task(task.task_id)
    sender = Sender(claimed=lease.claimed, tenant="default")
    wanted = OpenEffect(name="bank.pay", user_key=None, ordinal=0, digest=b"1")
    gate = await open_effect(engine.database, engine.catalog, sender, wanted)
    return task.task_id, gate.key


@pytest.mark.parametrize("is_recovered", [False, True])
async def test_a_backup_is_started_beside_its_original(clusters, is_recovered):
    """As it is, which keeps its timeline, or recovered to a point in time."""
    original = clusters.migrated()
    async with Engine(original.url, Settings()) as old:
        there = Dispatcher(old)
        before = await enqueued(there, 4)
        await completed(there, 1)
        held = await there.claim_one(worker="old")
        copy = clusters.copy(original, *(["-R"] if is_recovered else []))
        if is_recovered:
            await replicated(original, copy)
            await cut_off(copy)
            copy.promote()
        cursor = await event_tail(old.database)
        async with Engine(copy.url, Settings()) as new:
            here = Dispatcher(new)
            assert await causes(new) == ["created", "promoted" if is_recovered else "restarted"]
            ids_there, ids_here = await enqueued(there, 100), await enqueued(here, 100)
            assert not ids_here & (ids_there | before)
            # What was claimed on the original since is held there, and nothing here.
            taken = await there.claim_one(worker="old")
            assert (await here.heartbeat(taken)).lost == {int(taken.task_id)}
            assert await here.worker_id("new") != await there.worker_id("late")
            # Both servers may come to draw the same id; what it sends goes under two keys.
            number = await new.database.fetchval("select last_value from holdfast.task_id")
            partition = await old.database.fetchval("select first_id from holdfast.block order by block desc limit 1")
            if number < partition + 10**10:
                await old.database.fetch("select setval('holdfast.task_id', $1)", number)
                one, other = await effect_of(old, there), await effect_of(new, here)
                assert one[0] == other[0] and one[1] != other[1]
            await completed(here, 2, worker="new")
            assert (await kinds_after(new, cursor)).count("task.completed") == 2
            assert not (await there.heartbeat(held)).lost
            verified = await verify(new.database)
            assert verified.is_sound, verified.violations


async def test_a_dump_is_restored_into_a_server_that_counts_from_a_lower_number(clusters):
    original, other = clusters.migrated(), clusters.new()
    async with Engine(original.url, Settings()) as old:
        await old.database.fetch(
            "do $$ begin for i in 1..20000 loop perform pg_current_xact_id(); commit; end loop; end $$"
        )
        there = Dispatcher(old)
        before = await enqueued(there, 5)
        await completed(there, 2)
        held = await there.claim_one(worker="old")
        old_worker = await there.worker_id("old")
        cursor = await event_tail(old.database)
        original.dump_into(other)
        since = await enqueued(there, 50)
        await completed(there, 1)

        async with Engine(other.url, Settings()) as new:
            here = Dispatcher(new)
            fresh = await enqueued(here, 50)
            assert not fresh & (before | since)
            # Workers of the original are retired here: what they hold is lost at once, and they can take nothing.
            beat = await here.heartbeat(held)
            assert beat.lost == {int(held.task_id)}
            with pytest.raises(Conflict):
                await here.settle(held, Completed(b"1"))
            state = "select state from holdfast.worker where worker_id = $1"
            assert await new.database.fetchval(state, old_worker) == "gone"
            assert await here.reap_once() == 1
            assert (await here.task(held.task_id)).loss_count == 1
            again = await here.claim_task(held.task_id, worker="new")
            assert again.token != held.token and await here.worker_id("new") > old_worker
            await here.settle(again, Completed(b"1"))
            # Readers go on where they were, and nothing is counted twice or not at all.
            assert (await kinds_after(new, cursor)).count("task.completed") == 1
            assert await completed_count(new) == 3
            await completed(here, 2, worker="new")
            assert (await kinds_after(new, cursor)).count("task.completed") == 3
            assert await completed_count(new) == 5
            await new.database.fetch("select holdfast.recount_completed()")
            assert await completed_count(new) == 5
            await says_what_happened(new, "restored")
            # On the original nothing has changed.
            await there.settle(held, Completed(b"1"))
            assert await causes(old) == ["created"]
