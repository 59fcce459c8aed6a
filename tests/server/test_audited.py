"""Whatever changes something for somebody leaves one row that names them: every operation of the registry is tried."""

from __future__ import annotations

import pytest
from tests.core.flows import a_node, a_wait
from tests.datasets.hands import declared, orders

from holdfast.client.client import Client
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.identity.access import Access
from holdfast.core.limits.breaker import Breaker
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.audit import list_audit
from holdfast.engine.datasets.cutover import CutoverRequest, cut_over
from holdfast.engine.effects.gate import OpenEffect, Sender, open_effect
from holdfast.operations.context import OperationContext, perform
from holdfast.operations.registry import OPERATIONS
from holdfast.testing.factories import ACTION, a_failed_task, a_failure, a_retrying_task, a_running_task, a_task

CHANGING = {operation.name: operation for operation in OPERATIONS if operation.method != "GET"}
ITS_OWN_RECORD = {
    "task.submit": "the task is the record of what was handed in, and its event tells of it",
    "task.copy": "the task is the record of what was handed in, it names its original, and its event tells of it",
    "task.submit_many": "the tasks are the record of what was handed in, and their events tell of them",
    "run.start": "the run is the record of what was handed in, and its event tells of it",
}
"""Operations that leave no row, and why."""
WHO, WHY = "ops:anna", "smtp is down"


class Scene:
    """For each operation something that it changes, and what to ask it for. Other changes are made by `bob`."""

    def __init__(self, engine, harness) -> None:
        self.engine, self.harness = engine, harness

    async def ask(self, asked: str, /, by: str = "ops:bob", **fields):
        operation = CHANGING[asked]
        given = fields if "reason" not in operation.request.__struct_fields__ else {"reason": WHY} | fields
        context = OperationContext(client=Client.over(self.engine), actor=by)
        return await perform(operation, context, operation.request(**given))

    async def task_cancel(self):
        return {"task_id": (await self.harness.enqueue(a_task())).task_id}

    async def task_retry(self):
        return {"task_id": await a_retrying_task(self.harness)}

    async def run_pause(self):
        flow = FlowDefinition(name="shop.two", nodes=(a_node("first"), a_node("second"))).validated()
        return {"run_id": await self.harness.runs.start(flow)}

    run_cancel = run_pause

    async def run_resume(self):
        given = await self.run_pause()
        await self.ask("run.pause", **given)
        return given

    async def run_retry(self):
        given = await self.run_pause()
        await self.harness.settle(await self.harness.claim_one(), Failed(a_failure("validation: no")))
        return given

    async def run_approve(self):
        return {"run_id": await self.harness.runs.start(a_wait(config={"approval": True})), "node": "paid"}

    run_reject = run_approve

    async def run_signal(self):
        await self.harness.runs.start(a_wait())
        return {"name": "payment", "data": {"amount": 5}}

    async def queue_pause(self):
        await self.harness.enqueue(a_task(queue="mail"))
        return {"name": "mail"}

    async def queue_resume(self):
        await self.ask("queue.pause", **await self.queue_pause())
        return {"name": "mail"}

    async def queue_limit(self):
        return await self.queue_pause() | {"running": 3}

    async def quota_limit(self):
        return {"retries": "9/1m"}

    async def worker_drain(self):
        return {"worker_id": str(await self.harness.worker_id())}

    async def breaker_steer(self):
        await self.harness.guard(ACTION, breaker=Breaker())
        return {"name": ACTION, "to": "open"}

    async def schedule_create(self):
        await self.engine.catalog.declare(1, ACTION, "default", RetryPolicy(), "1")
        return {"name": "nightly", "action": ACTION, "every": "10m"}

    async def schedule_pause(self):
        await self.ask("schedule.create", **await self.schedule_create())
        return {"name": "nightly"}

    schedule_fire = schedule_delete = schedule_pause

    async def schedule_resume(self):
        await self.ask("schedule.pause", **await self.schedule_pause())
        return {"name": "nightly"}

    async def dataset_cutover(self):
        for version in (1, 2):
            await declared(self.engine, orders(version))
        return {"name": "orders", "version": 2}

    dataset_rollback = dataset_cutover

    async def dataset_drop(self):
        given = await self.dataset_cutover()
        await cut_over(self.engine.database, 1, "orders", 2, CutoverRequest(actor="ops:bob", reason=""))
        return given | {"version": 1}

    async def dead_redrive(self):
        return {"task_id": await a_failed_task(self.harness)}

    dead_ignore = dead_delete = dead_redrive

    async def dead_redrive_group(self):
        [letter] = await self.harness.letters(await a_failed_task(self.harness))
        return {"fingerprint": letter.fingerprint}

    dead_ignore_group = dead_delete_group = campaign_start = dead_redrive_group

    async def campaign_approve(self):
        view = await self.ask("campaign.start", **await self.campaign_start(), approval=True)
        return {"campaign_id": view.campaign_id}

    campaign_abort = campaign_approve

    async def campaign_resume(self):
        given = await self.campaign_approve()
        await self.engine.database.fetch("update holdfast.campaign set approved_by = 'ops:carl', state = 'stopped'")
        return given

    async def effect_allow(self):
        return {"name": "card.charge", "action": ACTION}

    effect_deny = effect_allow

    async def effect_compensate(self):
        lease, engine = await a_running_task(self.harness), self.engine
        await engine.catalog.declare(1, ACTION, "default", engine.catalog.policy(lease.claimed.policy_id), "")
        wanted = OpenEffect(
            name="card.charge", user_key="k", ordinal=0, digest=b"", compensation=ACTION, arguments=b"[]"
        )
        sender = Sender(claimed=lease.claimed, tenant="default")
        key = (await open_effect(engine.database, engine.catalog, sender, wanted)).key
        await self.harness.settle(lease, Completed(b"1"))
        return {"idempotency_key": key}

    async def webhook_add(self):
        return {"name": "pager", "url": "https://93.184.216.34/hook"}

    async def webhook_remove(self):
        await self.ask("webhook.add", **await self.webhook_add())
        return {"name": "pager"}

    webhook_test = webhook_rotate = webhook_pause = webhook_remove

    async def webhook_resume(self):
        await self.ask("webhook.pause", **await self.webhook_pause())
        return {"name": "pager"}

    async def token_create(self):
        return {"name": "deploys", "role": "operator"}

    async def token_revoke(self):
        return {"token_id": (await self.ask("token.create", **await self.token_create())).token_id}

    async def member_add(self):
        return {"issuer": "google", "role": "viewer", "domain": "example.com"}

    async def member_remove(self):
        return {"member_id": (await self.ask("member.add", **await self.member_add())).member_id}

    async def wake_on(self):
        return {}

    async def wake_off(self):
        await self.ask("wake.on")
        return {}


@pytest.fixture
def scene(engine, harness):
    return Scene(engine, harness)


def test_every_operation_that_changes_something_is_for_somebody_known():
    assert {one.access for one in CHANGING.values()} <= {Access.OPERATOR, Access.ADMIN}
    assert set(ITS_OWN_RECORD) <= set(CHANGING)


@pytest.mark.breaks_invariants
@pytest.mark.parametrize("name", [name for name in CHANGING if name not in ITS_OWN_RECORD])
async def test_it_leaves_one_row_that_names_who_and_why(scene, engine, name):
    given = await getattr(scene, name.replace(".", "_"))()
    earlier = {row.seq for row in await list_audit(engine.database, 1)}
    await scene.ask(name, by=WHO, **given)
    rows = [row for row in await list_audit(engine.database, 1) if row.seq not in earlier]
    assert [row.actor for row in rows] == [WHO], rows
    has_reason = "reason" in CHANGING[name].request.__struct_fields__
    assert rows[0].reason == (WHY if has_reason else rows[0].reason) and (
        rows[0].before != rows[0].after or name == "webhook.test"
    )
