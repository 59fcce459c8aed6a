"""What guards a step that an attempt keeps."""

from __future__ import annotations

import asyncio
import uuid

from tests.guards.checks.acting import again, reserved_lease
from tests.guards.checks.stage import OTHER_TENANT_ID, Stage, check, forged, handed_over, refuses

from holdfast.engine.effects.steps import StoredStep, keep_step, recall_steps
from holdfast.errors import LeaseLost
from holdfast.testing.factories import a_running_task


@check
async def a_step_needs_the_current_lease(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    step = StoredStep("page", b"1", b"2")
    forgeries = [
        forged(lease, lease_token=uuid.uuid4()),
        forged(lease, attempt=lease.attempt + 1),
        forged(lease, tenant_id=OTHER_TENANT_ID),
    ]
    for forgery in forgeries:
        with refuses(LeaseLost):
            await keep_step(stage.engine.database, forgery.claimed, step)
    assert await stage.value("select count(*) from holdfast.step") == 0


@check
async def a_reservation_keeps_no_step(stage: Stage) -> None:
    lease = await reserved_lease(stage, await a_running_task(stage.harness))
    with refuses(LeaseLost):
        await keep_step(stage.engine.database, lease.claimed, StoredStep("page", b"1", b"2"))


@check
async def a_step_that_waited_is_not_kept_for_the_lease_before(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    async with handed_over(stage, lease):
        keeping = asyncio.ensure_future(keep_step(stage.engine.database, lease.claimed, StoredStep("page", b"1", b"2")))
        await stage.waits(keeping)
    with refuses(LeaseLost):
        await keeping


@check
async def a_step_is_kept_once(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    for output in (b"1", b"2"):
        await keep_step(stage.engine.database, lease.claimed, StoredStep("page", b"1", output))
    lease = await again(stage, lease)
    assert await recall_steps(stage.engine.database, lease.claimed) == [StoredStep("page", b"1", b"1")]
