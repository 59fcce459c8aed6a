"""Compensate: undo an effect by the action that was registered for it, once, through the ordinary queue.

A recovery option for tasks that have ended. One transaction enqueues the action and marks the effect. A compensated
effect never returns its receipt again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.engine.audit import Change, audit
from holdfast.engine.idempotency import IdempotentRequest
from holdfast.engine.lifecycle.tasks.enqueue import EnqueueOrder, InternedOrder, enqueue_in, intern
from holdfast.errors import Conflict, NotFound
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database
from holdfast.store.sql.effects import effects as effects_sql


class Compensation(msgspec.Struct, frozen=True, kw_only=True):
    """The task that undoes an effect; `is_new` is False if it was requested before."""

    task_id: str
    action: str
    lane_id: int | None
    is_new: bool


async def compensate(
    database: Database,
    catalog: Catalog,
    tenant_id: int,
    key: str,
    *,
    actor: str,
    reason: str,
    once: IdempotentRequest | None = None,
    answer: Callable[[Compensation], Any] = lambda done: done,
) -> Compensation:
    """Enqueue the compensation of the effect under `key`. A repetition returns the same task.

    With `once`, the value of `answer` is stored under the idempotency key and returned to a repetition.
    """
    if once is not None:
        await once.look(database)
    found = _checked(await effects_sql.lock_compensation(database, tenant_id, key), key)
    order = await _interned_order(catalog, tenant_id, found)
    async with database.transaction() as session:
        if once is not None:
            await once.begin(session)
        # Lock the row and check it again: it may have changed since the first read.
        found = _checked(await effects_sql.lock_compensation(session, tenant_id, key), key)
        if found.compensated_by is not None:
            done = _answer(found.compensated_by, order.order.action, None, is_new=False)
            if once is not None:
                await once.keep(session, answer(done))
            return done
        keys = [f"compensate:{key}"]
        accepted = await enqueue_in(session, catalog, order, [_input(found, key)], keys=keys)
        [number] = accepted.task_ids
        await effects_sql.record_compensation(session, tenant_id, key, number, actor, reason)
        undone = {"task_id": str(number), "action": found.compensation}
        change = Change(verb="effect.compensate", subject_kind="effect", subject_id=key, after=undone)
        await audit(session, tenant_id, [change], actor=actor, reason=reason)
        done = _answer(number, order.order.action, accepted.lane_id, is_new=True)
        if once is not None:
            await once.keep(session, answer(done))
    return done


def _checked(found: effects_sql.LockCompensationRow | None, key: str) -> effects_sql.LockCompensationRow:
    if found is None:
        raise NotFound(
            f"There is no effect under {key}.", code="effect_not_found", advice="See `holdfast effect list`."
        )
    refusal = ""
    if found.compensation is None:
        refusal = "no compensation was registered with it"
    elif found.state == "r":
        refusal = "it was refused, so there is nothing to undo"
    elif found.is_going_on:
        refusal = f"task {found.task_id} is not over and may still do it"
    if refusal:
        raise Conflict(f"{found.name} cannot be compensated: {refusal}.", code="effect_not_compensable")
    return found


async def _interned_order(catalog: Catalog, tenant_id: int, found: effects_sql.LockCompensationRow) -> InternedOrder:
    action = found.compensation
    assert action is not None, "_checked refused it otherwise"
    declared = await catalog.declared(tenant_id, action)
    if declared is None:
        raise NotFound(
            f"No worker ever declared {action}, which undoes {found.name}.",
            code="action_not_found",
            advice="Start a worker that has it.",
        )
    order = EnqueueOrder(
        tenant_id=tenant_id,
        queue=declared.queue,
        action=action,
        policy=declared.policy,
        priority=declared.priority,
    )
    return await intern(catalog, order)


def _input(found: effects_sql.LockCompensationRow, key: str) -> bytes:
    """Return the input of a compensating action: one argument, `effect`."""
    effect = {
        "name": found.name,
        "idempotency_key": key,
        "user_key": found.user_key,
        "task_id": str(found.task_id),
        "arguments": msgspec.Raw(found.arguments or b"null"),
        "receipt": None if found.receipt is None else msgspec.Raw(found.receipt),
    }
    return msgspec.json.encode({"effect": effect})


def _answer(number: int, action: str, lane_id: int | None, *, is_new: bool) -> Compensation:
    return Compensation(task_id=str(number), action=action, lane_id=lane_id, is_new=is_new)
