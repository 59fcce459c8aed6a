"""Use cases of single tasks: cancel, retry, and compensate an effect.

Clients, operations and tests call these functions. Each runs the transaction of its verb and then publishes what was
committed. `enqueue` and `copy_task` of `lifecycle.tasks` have the same form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.engine.effects import compensate as effect_compensation
from holdfast.engine.effects.compensate import Compensation
from holdfast.engine.engine import Engine
from holdfast.engine.idempotency import IdempotentRequest
from holdfast.engine.lifecycle.dead_letters.requeue import Requeued
from holdfast.engine.lifecycle.tasks import cancel, retry
from holdfast.engine.publish import publish_and_propagate


async def cancel_task(
    engine: Engine, task_id: int, *, actor: str, reason: str = "", grace_seconds: float | None = None
) -> str:
    """Cancel one task: return `canceled` if it ended at once, or `canceling` if it was asked to stop.

    Raises `Conflict` if it ended before or has not begun, `NotFound` if it does not exist.
    """
    grace = engine.settings.worker.cancel_grace_seconds if grace_seconds is None else grace_seconds
    done = await cancel.cancel(
        engine.database, engine.catalog, engine.tenant_id, [task_id], grace_seconds=grace, reason=reason, actor=actor
    )
    await publish_and_propagate(engine, done.notifications)
    if task_id not in done.states:
        raise await cancel.not_cancelable(engine.database, engine.tenant_id, task_id)
    return done.states[task_id]


async def retry_task(
    engine: Engine,
    task_id: int,
    *,
    actor: str,
    reason: str = "",
    once: IdempotentRequest | None = None,
    answer: Callable[[Requeued], Any] = lambda done: done,
) -> Requeued:
    """Queue the next attempt of a failed or retrying task; see `lifecycle.tasks.retry` for the errors."""
    done = await retry.retry(
        engine.database, engine.catalog, engine.tenant_id, task_id, actor=actor, reason=reason, once=once, answer=answer
    )
    await publish_and_propagate(engine, done.notifications)
    return done


async def compensate_effect(
    engine: Engine,
    idempotency_key: str,
    *,
    actor: str,
    reason: str,
    once: IdempotentRequest | None = None,
    answer: Callable[[Compensation], Any] = lambda done: done,
) -> Compensation:
    """Enqueue the task that undoes an effect, once, and notify its workers."""
    done = await effect_compensation.compensate(
        engine.database,
        engine.catalog,
        engine.tenant_id,
        idempotency_key,
        actor=actor,
        reason=reason,
        once=once,
        answer=answer,
    )
    if done.lane_id is not None:
        engine.notifier.notify(lanes=(done.lane_id,))
    return done
