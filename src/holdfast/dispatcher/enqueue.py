"""Enqueue: accept tasks, one by one or by the thousand, in our own or the caller's transaction.

An accepted enqueue is never lost: it is a committed row. Without a key a broken connection leaves the outcome unknown
and says so; with a key the same call repeated gives the same task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.retry import RetryPolicy
from holdfast.errors import Conflict, Unavailable
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database, Session
from holdfast.store.statements import sql

_ENQUEUE = sql("enqueue")
_ENQUEUE_KEYED = sql("enqueue_keyed")
_FIND_KEYS = sql("find_keys")

_REPEATS_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is common to a batch of tasks: where they go and under which rules."""

    tenant_id: int
    queue: str
    action: str
    policy: RetryPolicy
    priority: int = 5
    delay_seconds: float = 0.0
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """Ids in the order of the inputs, and the lane to wake."""

    task_ids: list[int]
    lane_id: int
    is_new: bool = True


async def enqueue(
    database: Database,
    catalog: Catalog,
    order: Order,
    inputs: Sequence[bytes],
    *,
    keys: Sequence[str] | None = None,
    session: Session | None = None,
) -> Accepted:
    """Accept `inputs`; with `session`, inside the transaction open on it."""
    lane_id, columns = await _columns(catalog, order)
    tags = list(order.tags) or None
    if keys is not None:
        task_ids, is_new = await _keyed(database, session, columns, order, inputs, tags, keys)
        return Accepted(task_ids=task_ids, lane_id=lane_id, is_new=is_new)
    rows = await (session or database).fetch(_ENQUEUE, *columns, inputs, tags)
    return Accepted(task_ids=[row[0] for row in rows], lane_id=lane_id)


async def enqueue_batches(catalog: Catalog, order: Order, batches: Iterable[list[bytes]], session: Session) -> Accepted:
    """Accept batch after batch in the transaction open on `session`: the next is made while the last is stored."""
    lane_id, columns = await _columns(catalog, order)
    tags = list(order.tags) or None
    task_ids: list[int] = []
    storing: asyncio.Task[list[Any]] | None = None
    try:
        for batch in batches:
            if storing is not None:
                task_ids += [row[0] for row in await storing]
            storing = asyncio.ensure_future(session.fetch(_ENQUEUE, *columns, batch, tags))
            # One turn of the loop sends the statement; then the server works on it while we encode the next.
            await asyncio.sleep(0)
    finally:
        if storing is not None:
            await asyncio.wait([storing])
    if storing is not None:
        task_ids += [row[0] for row in storing.result()]
    return Accepted(task_ids=task_ids, lane_id=lane_id)


async def intern(catalog: Catalog, order: Order) -> None:
    """Learn the ids of an order's names. Before a transaction of our own: inside, it would want a second connection."""
    await _columns(catalog, order)


async def _columns(catalog: Catalog, order: Order) -> tuple[int, tuple[object, ...]]:
    lane_id = await catalog.lane_id(order.tenant_id, order.queue, order.action)
    policy_id = await catalog.policy_id(order.tenant_id, order.policy)
    policy = order.policy
    return lane_id, (
        order.tenant_id,
        lane_id,
        policy_id,
        policy.max_retries,
        policy.max_losses,
        order.priority,
        order.delay_seconds,
    )


async def _keyed(
    database: Database,
    session: Session | None,
    columns: tuple[object, ...],
    order: Order,
    inputs: Sequence[bytes],
    tags: list[str] | None,
    keys: Sequence[str],
) -> tuple[list[int], bool]:
    if session is not None:
        return await _accept_keyed(session, columns, order, inputs, tags, keys)
    for repeat in range(_REPEATS_MAX):
        try:
            async with database.transaction() as own:
                return await _accept_keyed(own, columns, order, inputs, tags, keys)
        except Unavailable:
            # Safe to repeat: a key that was accepted before the connection broke is found, not enqueued again.
            if repeat == _REPEATS_MAX - 1:
                raise
    raise AssertionError("unreachable")


async def _accept_keyed(
    session: Session,
    columns: tuple[object, ...],
    order: Order,
    inputs: Sequence[bytes],
    tags: list[str] | None,
    keys: Sequence[str],
) -> tuple[list[int], bool]:
    fresh = await session.fetch(_ENQUEUE_KEYED, *columns, inputs, tags, keys, order.action)
    rows = await session.fetch(_FIND_KEYS, order.tenant_id, keys, inputs, order.action)
    for row in rows:
        if not row["is_same"]:
            raise Conflict(
                f"The key {row['key']!r} already stands for task {row['task_id']} with another input.",
                code="idempotency_key_reused",
                advice="Use a new key for new work.",
                task_id=str(row["task_id"]),
            )
    return [row["task_id"] for row in rows], bool(fresh)
