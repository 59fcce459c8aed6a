"""What guards the undoing of an effect, and what the schema refuses of an effect."""

from __future__ import annotations

from typing import Any

import asyncpg
from tests.guards.checks.acting import answered, opened
from tests.guards.checks.stage import OTHER_TENANT_ID, Stage, another_tenant, check, refuses

from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.effects.compensate import compensate
from holdfast.engine.effects.gate import GateDecision
from holdfast.errors import Conflict, NotFound
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.store.statements import sql
from holdfast.testing.factories import ACTION, a_failure, a_running_task


async def _an_effect_to_undo(stage: Stage) -> GateDecision:
    """An effect of a task that is over, whose compensation some worker can run."""
    lease = await a_running_task(stage.harness)
    await stage.engine.catalog.declare(
        DEFAULT_TENANT_ID, ACTION, "default", stage.engine.catalog.policy(lease.claimed.policy_id), ""
    )
    gate = await opened(stage, lease, compensation=ACTION, arguments=b"[]")
    await answered(stage, lease, gate)
    await stage.harness.settle(lease, Completed(b"1"))
    return gate


async def _undo(stage: Stage, gate: GateDecision, *, tenant_id: int = DEFAULT_TENANT_ID) -> Any:
    return await compensate(
        stage.engine.database, stage.engine.catalog, tenant_id, gate.key, actor="ada", reason="wrong customer"
    )


@check
async def an_effect_is_undone_once(stage: Stage) -> None:
    await another_tenant(stage)
    gate = await _an_effect_to_undo(stage)
    with refuses(NotFound):
        await _undo(stage, gate, tenant_id=OTHER_TENANT_ID)
    first, second = [await _undo(stage, gate) for _ in range(2)]
    assert (first.task_id, first.is_new) == (second.task_id, True)
    assert not second.is_new
    kept = await stage.engine.database.fetch(
        sql("record_compensation"), DEFAULT_TENANT_ID, gate.key, 999, "eve", "once more"
    )
    assert kept == []


@check
async def another_tenants_effect_is_not_marked_as_undone(stage: Stage) -> None:
    gate = await _an_effect_to_undo(stage)
    assert not await stage.engine.database.fetch(sql("lock_compensation"), OTHER_TENANT_ID, gate.key)
    assert not await stage.engine.database.fetch(sql("record_compensation"), OTHER_TENANT_ID, gate.key, 999, "eve", "")


@check
async def one_caller_at_a_time_undoes_an_effect(stage: Stage) -> None:
    gate = await _an_effect_to_undo(stage)
    async with stage.engine.database.transaction() as held, stage.impatient() as session:
        await held.fetch(sql("lock_compensation"), DEFAULT_TENANT_ID, gate.key)
        with refuses(asyncpg.LockNotAvailableError):
            await session.fetch(sql("lock_compensation"), DEFAULT_TENANT_ID, gate.key)


@check
async def an_undone_effect_is_not_done_again(stage: Stage) -> None:
    lease = await a_running_task(stage.harness, max_retries=0)
    await stage.engine.catalog.declare(
        DEFAULT_TENANT_ID, ACTION, "default", stage.engine.catalog.policy(lease.claimed.policy_id), ""
    )
    options = {"compensation": ACTION, "arguments": b"[]"}
    gate = await opened(stage, lease, **options)
    await stage.harness.settle(lease, Failed(a_failure()))
    await _undo(stage, gate)
    await stage.harness.redrive(lease.task_id)
    with refuses(Conflict):
        await opened(stage, await stage.harness.claim_task(lease.task_id), **options)


@check
async def the_schema_refuses_a_receipt_without_its_state(stage: Stage) -> None:
    await _an_effect_to_undo(stage)
    with refuses(asyncpg.CheckViolationError):
        await stage.engine.database.fetch("update holdfast.effect set receipt = null")


@check
async def the_schema_refuses_an_answer_without_its_time(stage: Stage) -> None:
    await _an_effect_to_undo(stage)
    with refuses(asyncpg.CheckViolationError):
        await stage.engine.database.fetch("update holdfast.effect set answered_at = null")


@check
async def the_schema_refuses_a_compensation_without_its_arguments(stage: Stage) -> None:
    await _an_effect_to_undo(stage)
    with refuses(asyncpg.CheckViolationError):
        await stage.engine.database.fetch("update holdfast.effect set arguments = null")
