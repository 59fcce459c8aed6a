"""Reinject one dead task, with the semantics of a consumer of a dead-letter queue.

Two mechanisms separate concurrent workers: a taken dead letter is invisible for the visibility timeout, and a worker
needs a lease on the task before it changes anything. If another worker has the lease, that is no error: the dead letter
is handed back. The lease is always released; that of a worker that died expires.
"""

from __future__ import annotations

import logging

import msgspec

from holdfast.core.values.bounds import valid_worker_id
from holdfast.engine.audit import audit
from holdfast.engine.dispatch_transaction import REINJECT, dispatch_transaction
from holdfast.engine.engine import Engine
from holdfast.engine.lifecycle.dead_letters.requeue import Requeued, RequeueRequest, redrive_task
from holdfast.engine.lifecycle.tasks.retry import requeued
from holdfast.engine.publish import publish_and_propagate
from holdfast.errors import Conflict, Invalid
from holdfast.store.database import TRANSIENT
from holdfast.store.sql.dead_letters import sweep as sweep_sql

log = logging.getLogger("holdfast.dead")

VISIBILITY_SECONDS_MAX = 43_200.0


class Reinjected(msgspec.Struct, frozen=True):
    """Whether a task went back to its queue, and the task that was tried; None if there was none."""

    reinjected: bool
    task_id: str | None


async def reinject_once(
    engine: Engine, worker_id: str, visibility_timeout_seconds: float, *, tenant_id: int | None = None
) -> Reinjected:
    """Take the oldest open dead letter (of the engine's tenant unless another is given) and run its task again."""
    tenant_id = engine.tenant_id if tenant_id is None else tenant_id
    if not 0 < visibility_timeout_seconds <= VISIBILITY_SECONDS_MAX:
        raise Invalid(
            f"The visibility timeout must be more than 0 and at most {VISIBILITY_SECONDS_MAX:g} seconds.",
            code="invalid_visibility_timeout",
        )
    worker_id = valid_worker_id(worker_id)
    taken = await sweep_sql.take_dead_letter(engine.database, tenant_id, visibility_timeout_seconds)
    if taken is None:
        return Reinjected(False, None)
    task_id: int = taken.task_id
    leased = await sweep_sql.lease_dead_task(engine.database, task_id, worker_id, visibility_timeout_seconds)
    if leased is None:
        await sweep_sql.return_dead_letter(engine.database, taken.dead_letter_id)
        return Reinjected(False, str(task_id))
    try:
        done = await _redrive(engine, tenant_id, task_id, worker_id)
    finally:
        await _release(engine, task_id, worker_id)
    if done is not None:
        await publish_and_propagate(engine, done.notifications)
    return Reinjected(done is not None, str(task_id))


async def _release(engine: Engine, task_id: int, worker_id: str) -> None:
    try:
        await sweep_sql.release_dead_task(engine.database, task_id, worker_id)
    except TRANSIENT as error:
        # The caller needs the result of the re-drive, not this error.
        log.warning("the lease on dead task %s was not released and will lapse: %s", task_id, error)


async def _redrive(engine: Engine, tenant_id: int, task_id: int, worker_id: str) -> Requeued | None:
    """Requeue the task; return None if it is no longer failed or its run cannot continue."""
    try:
        async with dispatch_transaction(engine.database, REINJECT, f"The reinjection of task {task_id}") as session:
            by = RequeueRequest(worker_id, "reinjected", lifts_pause=False)
            done = await redrive_task(session, engine.catalog, tenant_id, task_id, by)
            if done is not None:
                change = requeued("dead.reinject", done, before="failed")
                await audit(session, tenant_id, [change], actor=worker_id, reason=by.reason)
            return done
    except Conflict:
        return None
