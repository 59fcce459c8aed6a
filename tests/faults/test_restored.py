"""A replica that lags is promoted, a backup is started beside its original, a dump is restored elsewhere.

Nothing old is mistaken for something new, and everything goes on."""

from __future__ import annotations

from datetime import UTC, datetime

import asyncpg
import pytest
from tests.faults.clusters import some_clusters
from tests.faults.fleet import Fleet
from tests.faults.victim_app import app, gated
from tests.net.receiver import receiving
from tests.waiting import eventually

from holdfast.core.tasks.outcome import Completed
from holdfast.engine.audit import list_audit, verify_audit
from holdfast.engine.effects.gate import OpenEffect, Sender, open_effect
from holdfast.engine.engine import Engine
from holdfast.engine.lifecycle.tasks.claim import WorkerIdentity, held_by
from holdfast.engine.limits.queues import list_queues
from holdfast.engine.queries.checkup import check_up
from holdfast.engine.queries.events import event_tail, events_after
from holdfast.engine.queries.verify import verify
from holdfast.engine.webhooks.commands import add_webhook, show_webhook
from holdfast.engine.webhooks.deliver import deliver_webhooks_once
from holdfast.errors import Conflict, Unavailable
from holdfast.net.address import EgressRules
from holdfast.net.guarded_request import Guarded
from holdfast.settings.settings import EgressSettings, Settings, WebhookSettings
from holdfast.store.statements import sql
from holdfast.testing.engine_harness import EngineHarness
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


async def enqueued(harness, number):
    return {int(one.task_id) for one in await harness.enqueue_many(a_task(), [{}] * number)}


async def completed(harness, number=1, worker="first"):
    leases = await harness.claim(number, worker=worker)
    for lease in leases:
        await harness.settle(lease, Completed(b"1"))
    assert len(leases) == number


async def kinds_after(engine, cursor):
    return [event.kind for event in (await events_after(engine.database, 1, cursor)).events]


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


MANY_TRANSACTIONS = "do $$ begin for i in 1..20000 loop perform pg_current_xact_id(); commit; end loop; end $$"
BOTH = "postgresql://postgres@127.0.0.1:{},127.0.0.1:{}/postgres?target_session_attrs=read-write"


@pytest.mark.slow(
    "it runs a load through faults; test_a_dump_is_restored_into_a_server_that_counts_from_a_lower_number is fast"
)
async def test_a_replica_that_lags_is_promoted(clusters):
    primary = clusters.migrated()
    async with Engine(primary.url, Settings()):
        pass
    replica = clusters.copy(primary, "-R")
    async with Engine(BOTH.format(primary.port, replica.port), Settings()) as engine:
        harness = EngineHarness(engine)
        kept = await enqueued(harness, 6)
        await completed(harness, 2)
        known = await harness.claim_one(worker="known")
        await replicated(primary, replica)
        await cut_off(replica)

        lost = await enqueued(harness, 300)
        await harness.enqueue(a_task(action="shop.mail", queue="mail"))
        doubtful = await harness.claim_one(worker="unknown")
        await completed(harness, 3)
        lost_worker = await harness.worker_id("unknown")
        cursor = await event_tail(engine.database)
        primary.crash()
        replica.promote()

        fresh = await asked_again(lambda: enqueued(harness, 300))
        assert not fresh & (kept | lost) and min(fresh) > max(lost)
        assert await causes(engine) == ["created", "promoted"]
        # A name that was interned in the last moments is interned anew, for callers in this very process.
        mail = await harness.enqueue(a_task(action="shop.mail", queue="mail"))
        assert (await harness.task(mail.task_id)).queue == "mail"
        # The server does not know what it did not receive, and gives nobody the same number.
        beat = await harness.heartbeat(doubtful)
        assert beat.lost == {int(doubtful.task_id)} and beat.worker_state is None
        with pytest.raises(Conflict):
            await harness.settle(doubtful, Completed(b"1"))
        assert await harness.worker_id("newcomer") > lost_worker
        # What it did receive goes on: nothing that runs is run twice for a promotion.
        assert not (await harness.heartbeat(known)).lost
        await harness.settle(known, Completed(b"1"))
        await completed(harness, 4, worker="newcomer")
        assert (await kinds_after(engine, cursor)).count("task.completed") == 5
        assert await completed_count(engine) == 2 + 5
        await says_what_happened(engine, "promoted")
        assert (await verify_audit(engine.database, 1)).is_sound


async def effect_of(engine, harness):
    """Enqueue a task that sends something; answers its id and the key it went under."""
    task = await harness.enqueue(a_task())
    lease = await harness.claim_task(task.task_id)
    sender = Sender(claimed=lease.claimed, tenant="default")
    wanted = OpenEffect(name="bank.pay", user_key=None, ordinal=0, digest=b"1")
    gate = await open_effect(engine.database, engine.catalog, sender, wanted)
    return task.task_id, gate.key


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize("is_recovered", [False, True])
async def test_a_backup_is_started_beside_its_original(clusters, is_recovered):
    """As it is, which keeps its timeline, or recovered to a point in time."""
    original = clusters.migrated()
    async with Engine(original.url, Settings()) as old:
        there = EngineHarness(old)
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
            here = EngineHarness(new)
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
        await old.database.fetch(MANY_TRANSACTIONS)
        there = EngineHarness(old)
        before = await enqueued(there, 5)
        await completed(there, 2)
        held = await there.claim_one(worker="old")
        old_worker = await there.worker_id("old")
        cursor = await event_tail(old.database)
        original.dump_into(other)
        since = await enqueued(there, 50)
        await completed(there, 1)

        async with Engine(other.url, Settings()) as new:
            here = EngineHarness(new)
            fresh = await enqueued(here, 50)
            assert not fresh & (before | since)
            # Workers of the original are retired here: what they hold is lost at once, and they can take nothing. They
            # do not find it as a claim whose answer got lost either, also not over HTTP, where they name no token.
            identity = WorkerIdentity(worker_id=old_worker, actions=["shop.charge"], queues=None, lease_seconds=60.0)
            async with new.database.session() as session:
                assert await held_by(session, identity, []) == []
            assert await new.database.fetch(sql("held_unnamed"), old_worker, [], 60.0, 10) == []
            assert await new.database.fetch(sql("renew_held"), old_worker, [int(held.task_id)], 60.0) == []
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


class Restored:
    """A server whose dump is restored into another one, which then takes over its address."""

    def __init__(self, clusters):
        self.old, self._new = clusters.migrated(), clusters.new()
        self.url = self.old.url
        # The new server counts its transactions from a lower number.
        self.old.run("psql", "-q", "-d", self.url, "-c", MANY_TRANSACTIONS)

    async def part(self):
        """From here on the new server does not learn what happens on the old one."""
        self.old.dump_into(self._new)

    def replace(self):
        self._new.take_over(self.old)


class Promoted:
    """A server with a replica that lags and is promoted."""

    def __init__(self, clusters):
        self.old = clusters.migrated()
        self._new = clusters.copy(self.old, "-R")
        self.url = BOTH.format(self.old.port, self._new.port)

    async def part(self):
        await replicated(self.old, self._new)
        await cut_off(self._new)

    def replace(self):
        self._new.promote()


@pytest.fixture(params=[Restored, Promoted])
def servers(request, clusters):
    return request.param(clusters)


async def test_a_worker_of_the_old_server_settles_nothing_on_the_new_one(servers, tmp_path):
    """It holds a lease and has ended its attempt, but could not report that before the server was replaced."""
    log, gate = tmp_path / "executions", tmp_path / "gate"
    # The lease is longer than all of this takes, so that its own end does not end the worker.
    times = {"HOLDFAST_LEASE_SECONDS": "60", "HOLDFAST_HEARTBEAT_SECONDS": "5"}
    fleet = Fleet(servers.url, log, settings=times, options=("--no-loops",))
    settings = Settings(url=servers.url)
    app.configure(settings)
    try:
        async with Engine(servers.url, settings) as old, app.client() as client:
            task = await client.enqueue(gated, number=1, gate=str(gate))
            if isinstance(servers, Promoted):
                await servers.part()
            fleet.start()
            held = "select worker_id from holdfast.live where state = 'r'"
            worker_id = await eventually(lambda: old.database.fetchval(held))
            await eventually(log.exists)
            if isinstance(servers, Restored):
                await servers.part()
            servers.old.crash()
            gate.touch()
            await eventually(lambda: gate.read_text() == "over\n")
            servers.replace()

            assert await asked_again(lambda: task.result(60)) != [1, first_of(log)[2]]
        async with Engine(servers.url, settings) as new:
            rows = await new.database.fetch(
                "select worker_id from holdfast.attempt where task_id = $1 and state = 'c'", int(task.task_id)
            )
            assert len(rows) == 1 and rows[0]["worker_id"] != worker_id
            refused = f"report refused: task {task.task_id} attempt 1"
            said = log.with_suffix(".err")
            await eventually(lambda: refused in said.read_text())
            assert len(executions(log)) == 2
            verified = await verify(new.database)
            assert verified.is_sound, verified.violations
    finally:
        fleet.stop()


def executions(log):
    """Task, attempt and process of each execution."""
    return [tuple(int(word) for word in line.split()) for line in log.read_text().splitlines()]


def first_of(log):
    return executions(log)[0]


async def test_a_webhook_goes_on_after_its_server_was_replaced(servers):
    """Every event arrives; what arrives again has the id it had, and no other event has that."""
    settings = Settings(
        egress=EgressSettings(allow=("127.0.0.0/8",), ports="*"), webhooks=WebhookSettings(look_seconds=0.01)
    )
    guarded = Guarded(EgressRules.of(settings.egress))

    async def finished(engine, number):
        """Complete some tasks; answers their ids."""
        harness = EngineHarness(engine)
        leases = [await harness.claim_task(one) for one in await asked_again(lambda: enqueued(harness, number))]
        for lease in leases:
            await harness.settle(lease, Completed(b"1"))
        return {lease.task_id for lease in leases}

    def arrived():
        """The tasks whose ends arrived, and under which ids."""
        ids = {}
        for asked in receiver.asked:
            ids.setdefault(asked.json["data"]["task_id"], set()).add(asked.headers["webhook-id"])
        return ids

    async def delivered(engine, wanted):
        async def deliver():
            await deliver_webhooks_once(engine, guarded)
            return wanted <= arrived().keys()

        await eventually(deliver)

    try:
        async with receiving() as receiver, Engine(servers.url, settings) as engine:
            await add_webhook(engine, 1, "hook", receiver.url, actor="anna", kinds=["task.completed"])
            early = await finished(engine, 3)
            await delivered(engine, early)
            due = await finished(engine, 2)
            await servers.part()
            late = await finished(engine, 2)
            await delivered(engine, due | late)
            servers.old.crash()
            servers.replace()

            fresh = await finished(engine, 3)
            sent_before = len(receiver.asked)
            await delivered(engine, fresh)
            # What was due when the two servers parted is due here as well, in order, and nothing from before that.
            again = [asked.json["data"]["task_id"] for asked in receiver.asked[sent_before:]]
            assert set(again[:2]) == due and set(again[2:]) == fresh and len(again) == 5
            ids = arrived()
            assert ids.keys() == early | due | late | fresh
            assert all(len(under) == 1 for under in ids.values()), ids
            assert len(set.union(*ids.values())) == len(ids)
            assert (await show_webhook(engine.database, 1, "hook")).state == "active"
    finally:
        await guarded.close()
