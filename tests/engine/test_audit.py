"""Every privileged change leaves its row in the audit log, in the same transaction."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest
from tests.core.flows import a_flow, a_node
from tests.datasets.hands import declared, orders
from tests.engine.full_disk import full_disk, is_refused
from tests.waiting import waits

import holdfast as hf
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import NodeKind
from holdfast.core.limits.breaker import Breaker, CircuitState
from holdfast.core.limits.quota import Quota
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.audit import Change, audit, list_audit, verify_audit
from holdfast.engine.datasets import cutover
from holdfast.engine.datasets.cutover import CutoverRequest
from holdfast.engine.effects import authority
from holdfast.engine.effects.compensate import compensate
from holdfast.engine.effects.gate import OpenEffect, Sender, open_effect
from holdfast.engine.lifecycle.runs.signals import send_by_hand
from holdfast.engine.lifecycle.tasks import cancel as cancel_verb
from holdfast.engine.limits import queues
from holdfast.engine.limits.quotas import set_quota
from holdfast.engine.schedules import commands as schedule_commands
from holdfast.engine.schedules.commands import ScheduleDraft
from holdfast.engine.workers.drain import drain_worker
from holdfast.errors import Conflict, Invalid
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.testing.factories import ACTION, a_failed_task, a_failure, a_retrying_task, a_running_task, a_task

AN_APPROVAL = FlowDefinition(
    name="shop.wait", nodes=(a_node("paid", action="payment", kind=NodeKind.WAIT, config={"approval": True}),)
).validated()
A_WAIT = FlowDefinition(name="shop.event", nodes=(a_node("paid", action="payment", kind=NodeKind.WAIT),)).validated()
WHO = {"actor": "anna", "reason": "smtp is down"}


class Subject:
    """Something to change, one verb, and what the log should say of it."""

    def __init__(self, engine, harness, client) -> None:
        self.engine, self.harness, self.client = engine, harness, client

    async def queue_pause(self):
        await self.harness.enqueue(a_task(queue="mail"))
        return lambda: queues.pause(self.engine, DEFAULT_TENANT_ID, "mail", **WHO), ("queue.pause", "queue", "mail")

    async def queue_resume(self):
        await self.harness.enqueue(a_task(queue="mail"))
        await self.harness.pause("mail")
        return lambda: queues.resume(self.engine, DEFAULT_TENANT_ID, "mail", **WHO), ("queue.resume", "queue", "mail")

    async def queue_limit(self):
        await self.harness.enqueue(a_task(queue="mail"))
        limits = {"max_running": 3, "starts_per_second": 0.5}
        verb = lambda: queues.limit(self.engine, DEFAULT_TENANT_ID, "mail", **limits, **WHO)  # noqa: E731
        return verb, ("queue.limit", "queue", "mail")

    async def task_cancel(self):
        task = await self.harness.enqueue(a_task())
        return lambda: self.harness.cancel(task.task_id, **WHO), ("task.cancel", "task", task.task_id)

    async def task_cancel_running(self):
        lease = await a_running_task(self.harness)
        return lambda: self.harness.cancel(lease.task_id, **WHO), ("task.cancel", "task", lease.task_id)

    async def task_retry_now(self):
        task_id = await a_retrying_task(self.harness)
        return lambda: self.harness.retry(task_id, **WHO), ("task.retry", "task", task_id)

    async def task_retry(self):
        lease = await a_running_task(self.harness)
        await self.harness.settle(lease, Failed(a_failure("validation: no such customer")))
        task_id = lease.task_id
        return lambda: self.harness.retry(task_id, **WHO), ("task.retry", "task", task_id)

    async def worker_drain(self):
        worker_id = await self.harness.worker_id()
        verb = lambda: drain_worker(self.engine.database, worker_id, **WHO)  # noqa: E731
        return verb, ("worker.drain", "worker", str(worker_id))

    async def run_pause(self):
        run = await self.client.start(a_flow("a>b"))
        return lambda: run.pause(WHO["reason"], actor="anna"), ("run.pause", "run", run.run_id)

    async def run_resume(self):
        run = await self.client.start(a_flow("a>b"))
        await run.pause()
        return lambda: run.resume(WHO["reason"], actor="anna"), ("run.resume", "run", run.run_id)

    async def run_cancel(self):
        run = await self.client.start(a_flow("a>b"))
        return lambda: run.cancel(WHO["reason"], actor="anna"), ("run.cancel", "run", run.run_id)

    async def run_retry(self):
        run = await self.client.start(a_flow("a>b"))
        self.harness.know("shop.work")
        await self.harness.settle(await self.harness.claim_one(), Failed(a_failure("validation: no")))
        return lambda: run.retry(WHO["reason"], actor="anna"), ("run.retry", "run", run.run_id)

    async def run_approve(self):
        run = self.client.run(await self.harness.runs.start(AN_APPROVAL))
        return lambda: run.approve("paid", comment=WHO["reason"], actor="anna"), ("run.approve", "run", run.run_id)

    async def run_reject(self):
        run = self.client.run(await self.harness.runs.start(AN_APPROVAL))
        return lambda: run.reject("paid", comment=WHO["reason"], actor="anna"), ("run.reject", "run", run.run_id)

    async def run_signal(self):
        run_id = int(await self.harness.runs.start(A_WAIT))
        place = (self.engine.database, self.engine.catalog, 1, "payment", b"1")
        return lambda: send_by_hand(*place, run_id=run_id, **WHO), ("run.signal", "event", "payment")

    async def effect_deny(self):
        verb = lambda: authority.rule(self.engine.database, 1, "card.charge", is_allowed=False, **WHO)  # noqa: E731
        return verb, ("effect.deny", "effect", "card.charge")

    async def effect_allow(self):
        await authority.rule(self.engine.database, 1, "card.charge", is_allowed=False, **WHO)
        verb = lambda: authority.rule(self.engine.database, 1, "card.charge", is_allowed=True, **WHO)  # noqa: E731
        return verb, ("effect.allow", "effect", "card.charge")

    async def effect_compensate(self):
        lease, engine = await a_running_task(self.harness), self.engine
        policy = engine.catalog.policy(lease.claimed.policy_id)
        await engine.catalog.declare(DEFAULT_TENANT_ID, ACTION, "default", policy, "")
        wanted = OpenEffect(
            name="card.charge", user_key="k", ordinal=0, digest=b"", compensation=ACTION, arguments=b"[]"
        )
        sender = Sender(claimed=lease.claimed, tenant="default")
        key = (await open_effect(engine.database, engine.catalog, sender, wanted)).key
        await self.harness.settle(lease, Completed(b"1"))
        verb = lambda: compensate(engine.database, engine.catalog, DEFAULT_TENANT_ID, key, **WHO)  # noqa: E731
        return verb, ("effect.compensate", "effect", key)

    async def quota_set(self):
        await self.harness.enqueue(a_task(queue="mail"))
        verb = lambda: set_quota(self.engine, 1, Quota(retries=3), queue="mail", **WHO)  # noqa: E731
        return verb, ("quota.set", "queue", "mail")

    async def quota_lift(self):
        await set_quota(self.engine, 1, Quota(retries=3), actor="bob", reason="")
        return lambda: set_quota(self.engine, 1, None, **WHO), ("quota.lift", "tenant", "1")

    async def breaker_open(self):
        await self.harness.guard(ACTION, breaker=Breaker())
        verb = lambda: self.harness.steer(ACTION, CircuitState.OPEN, **WHO)  # noqa: E731
        return verb, ("breaker.open", "action", ACTION)

    async def breaker_close(self):
        await self.harness.guard(ACTION, breaker=Breaker())
        await self.harness.steer(ACTION, CircuitState.OPEN)
        verb = lambda: self.harness.steer(ACTION, CircuitState.CLOSED, **WHO)  # noqa: E731
        return verb, ("breaker.close", "action", ACTION)

    async def schedule_create(self):
        draft = ScheduleDraft(name="nightly", origin=WHO["actor"], target=ACTION, every_seconds=60.0)
        verb = lambda: schedule_commands.create_schedule(self.engine.database, 1, draft, reason=WHO["reason"])  # noqa: E731
        return verb, ("schedule.create", "schedule", "nightly")

    async def schedule_pause(self):
        await self.harness.schedules.keep("nightly")
        return lambda: schedule_commands.pause(self.engine, 1, "nightly", **WHO), (
            "schedule.pause",
            "schedule",
            "nightly",
        )

    async def schedule_resume(self):
        await self.harness.schedules.keep("nightly")
        await self.harness.schedules.pause("nightly")
        return lambda: schedule_commands.resume(self.engine, 1, "nightly", **WHO), (
            "schedule.resume",
            "schedule",
            "nightly",
        )

    async def schedule_fire(self):
        await self.harness.schedules.keep("nightly")
        return lambda: schedule_commands.fire(self.engine, 1, "nightly", **WHO), (
            "schedule.fire",
            "schedule",
            "nightly",
        )

    async def schedule_delete(self):
        await self.harness.schedules.keep("nightly")
        verb = lambda: schedule_commands.delete_schedule(self.engine, 1, "nightly", **WHO)  # noqa: E731
        return verb, ("schedule.delete", "schedule", "nightly")

    async def dataset_cut_over(self):
        await self._two_versions()
        verb = lambda: cutover.cut_over(self.engine.database, 1, "orders", 2, CutoverRequest(**WHO))  # noqa: E731
        return verb, ("dataset.cut_over", "dataset", "orders:2")

    async def dataset_roll_back(self):
        await self._two_versions()
        verb = lambda: cutover.roll_back(self.engine.database, 1, "orders", 2, CutoverRequest(**WHO))  # noqa: E731
        return verb, ("dataset.roll_back", "dataset", "orders:2")

    async def dataset_drop(self):
        await self._two_versions()
        await cutover.cut_over(self.engine.database, 1, "orders", 2, CutoverRequest(actor="bob", reason=""))
        verb = lambda: cutover.drop(self.engine.database, 1, "orders", 1, CutoverRequest(**WHO))  # noqa: E731
        return verb, ("dataset.drop", "dataset", "orders:1")

    async def _two_versions(self):
        for version in (1, 2):
            await declared(self.engine, orders(version))


VERBS = [name for name in vars(Subject) if not name.startswith("_")]


@pytest.fixture
async def client(holdfast_url):
    app = hf.App("shop", settings=hf.Settings(url=holdfast_url))
    app.action(name="work", max_retries=0)(lambda: None)
    async with app.client() as opened:
        yield opened


@pytest.fixture
def subject(engine, harness, client):
    return Subject(engine, harness, client)


async def rows(engine, **filters):
    return await list_audit(engine.database, DEFAULT_TENANT_ID, **filters)


@pytest.mark.parametrize("name", VERBS)
async def test_a_privileged_change_leaves_its_row(subject, engine, name):
    change, (verb, kind, number) = await getattr(subject, name)()
    earlier = len(await rows(engine))
    await change()
    row, *before = await rows(engine)
    assert (row.verb, row.subject_kind, row.subject_id, len(before)) == (verb, kind, number, earlier)
    assert (row.actor, row.reason) == (WHO["actor"], WHO["reason"])
    assert row.before != row.after
    assert (await verify_audit(engine.database, DEFAULT_TENANT_ID)).is_sound


@pytest.mark.parametrize("name", VERBS)
async def test_a_change_that_cannot_be_recorded_does_not_happen(subject, engine, name):
    change, _ = await getattr(subject, name)()
    async with full_disk(engine):
        await is_refused(change)


async def test_what_was_before_and_after_is_told(subject, engine):
    for name in ("queue_limit", "task_cancel", "task_retry"):
        change, _ = await getattr(subject, name)()
        await change()
    retried, canceled, limited = await rows(engine)
    assert (limited.before["max_running"], limited.after["max_running"], limited.after["paused"]) == (None, 3, False)
    assert (canceled.before, canceled.after) == ({"state": "queued"}, {"state": "canceled"})
    assert (retried.before["state"], retried.after) == ("failed", {"state": "queued", "attempt": 2, "generation": 1})


async def test_what_changes_nothing_leaves_no_row(engine, harness):
    task_id = await a_failed_task(harness)
    await harness.pause()
    assert not await harness.pause()
    await harness.cancel(task_id)
    with pytest.raises(Conflict):
        await harness.retry((await harness.enqueue(a_task())).task_id)
    assert [row.verb for row in await rows(engine)] == ["queue.pause"]


@pytest.mark.parametrize("bad", [{"reason": "x" * 1001}, {"reason": "nul\0"}, {"actor": ""}, {"actor": "x" * 257}])
async def test_an_actor_or_reason_nobody_could_read_is_refused_before_anything_changes(engine, harness, bad):
    await harness.enqueue(a_task(queue="mail"))
    with pytest.raises((Invalid, asyncpg.CharacterNotInRepertoireError)):
        await queues.pause(engine, DEFAULT_TENANT_ID, "mail", **{**WHO, **bad})
    (view,) = await queues.list_queues(engine.database, DEFAULT_TENANT_ID)
    assert not view.paused and not await rows(engine)


async def test_several_tasks_canceled_at_once_have_a_row_each(engine, harness):
    tasks = [int(task.task_id) for task in await harness.enqueue_many(a_task(), [{}] * 5)]
    await cancel_verb.cancel(engine.database, engine.catalog, DEFAULT_TENANT_ID, tasks, grace_seconds=1, **WHO)
    assert [row.subject_id for row in await rows(engine)] == [str(task_id) for task_id in reversed(tasks)]
    assert (await verify_audit(engine.database, DEFAULT_TENANT_ID)).checked == 5


async def test_writers_at_once_never_fork_the_chain(engine, harness):
    tasks = await harness.enqueue_many(a_task(), [{}] * 40)
    await asyncio.gather(*(harness.cancel(task.task_id, **WHO) for task in tasks))
    verified = await verify_audit(engine.database, DEFAULT_TENANT_ID)
    assert (verified.checked, verified.broken) == (40, None)
    assert {row.subject_id for row in await rows(engine)} == {task.task_id for task in tasks}


async def test_a_writer_waits_for_the_one_before_it(engine, harness):
    """Whoever comes second follows the row of the first, although that was not committed when it came."""
    await harness.enqueue(a_task())
    async with engine.database.transaction() as session:
        await audit(session, DEFAULT_TENANT_ID, [Change(verb="x", subject_kind="x", subject_id="1")], **WHO)
        second = asyncio.ensure_future(harness.pause())
        assert await waits(engine.database, second)
    assert await second
    assert [row.verb for row in await rows(engine)] == ["queue.pause", "x"]


async def test_each_tenant_has_a_chain_of_its_own(engine):
    await engine.database.fetch("insert into holdfast.tenant (tenant_id, name) values (2, 'other')")
    for tenant_id in (1, 2, 1):
        async with engine.database.transaction() as session:
            await audit(session, tenant_id, [Change(verb="x", subject_kind="x", subject_id="1")], **WHO)
    counts = [(await verify_audit(engine.database, tenant_id)).checked for tenant_id in (1, 2)]
    assert counts == [2, 1]
    assert len(await list_audit(engine.database, 2)) == 1


async def test_the_log_is_filtered_and_paged(engine, harness, clock):
    tasks = await harness.enqueue_many(a_task(), [{}] * 3)
    for task in tasks:
        await harness.cancel(task.task_id, **WHO)
    await clock.advance("2h")
    await harness.pause(actor="bob")
    assert [row.seq for row in await rows(engine, limit=2)] == [4, 3]
    assert [row.seq for row in await rows(engine, limit=2, before=3)] == [2, 1]
    assert [row.seq for row in await rows(engine, actor="bob")] == [4]
    assert [row.seq for row in await rows(engine, verb="task.cancel", limit=1)] == [3]
    assert [row.seq for row in await rows(engine, subject_kind="task", subject_id=tasks[0].task_id)] == [1]
    assert [row.seq for row in await rows(engine, since_seconds=3600)] == [4]
    with pytest.raises(Invalid):
        await rows(engine, limit=0)
