"""Enqueue tasks, singly or in batches: `enqueue` in a transaction of its own, `enqueue_in` in the caller's.

An accepted task is a committed row and is never lost. Without a key, a broken connection leaves the outcome unknown,
and the error says so. With a key, the same call repeated returns the same task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import msgspec

from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.engine import Engine
from holdfast.errors import Conflict, Unavailable
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database, Session
from holdfast.store.sql.tasks import enqueue as enqueue_sql

_BATCH = 1_000
_REPEATS_MAX = 3
_LINES_BYTES_MAX = 1_000_000
"""Larger inputs are few, and joining them into one text would copy them once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueueOrder:
    """The common part of a batch of tasks: tenant, queue, action, policy and options."""

    tenant_id: int
    queue: str
    action: str
    policy: RetryPolicy
    priority: int = 5
    delay_seconds: float = 0.0
    tags: tuple[str, ...] = ()
    original_task_id: int | None = None
    """The task that a single task is a copy of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InternedOrder:
    """An order whose names are resolved to ids: the first seven parameters of every enqueue statement, and its tags."""

    order: EnqueueOrder
    lane_id: int
    columns: tuple[int, int, int, int, int, int, float]
    tags: list[str] | None


class AcceptedBatch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Task ids in the order of the inputs, and the lane to notify."""

    task_ids: list[int]
    lane_id: int
    is_new: bool = True


class InputBatches:
    """More inputs than one statement takes. Batches are encoded one by one, each while the previous one is stored."""

    def __init__(
        self, batches: Iterator[list[Mapping[str, Any]]], encode: Callable[[list[Mapping[str, Any]]], list[bytes]]
    ) -> None:
        self._first = next(batches, [])
        self._second = next(batches, [])
        self._rest = batches
        self._encode = encode

    @classmethod
    def of(
        cls, inputs: Iterable[Mapping[str, Any]], encode: Callable[[list[Mapping[str, Any]]], list[bytes]]
    ) -> InputBatches | list[bytes]:
        """Return the encoded inputs if they are one batch, else the batches; `encode` refuses invalid inputs."""
        batches = cls(_batches(inputs), encode)
        return batches if batches._second else encode(batches._first)

    def __len__(self) -> int:
        """Return how many inputs are known before the first batch is stored. The total is known only at the end."""
        return len(self._first) + len(self._second)

    def encoded(self, spend: Callable[[list[Mapping[str, Any]]], object]) -> Iterator[list[bytes]]:
        """Yield the encoded batches. `spend` counts those that the length does not include, and refuses too many."""
        yield self._encode(self._first)
        yield self._encode(self._second)
        for batch in self._rest:
            spend(batch)
            yield self._encode(batch)


TaskInputs: TypeAlias = Sequence[bytes] | InputBatches


def _batches(inputs: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    source = iter(inputs)
    while batch := list(islice(source, _BATCH)):
        yield batch


async def intern(catalog: Catalog, order: EnqueueOrder) -> InternedOrder:
    """Resolve the names of an order to ids. Call it before the transaction begins: it needs a session of its own."""
    policy = order.policy
    lane_id = await catalog.lane_id(order.tenant_id, order.queue, order.action)
    policy_id = await catalog.policy_id(order.tenant_id, policy)
    named = (order.tenant_id, lane_id, policy_id)
    rules = (policy.max_retries, policy.max_losses, order.priority, order.delay_seconds)
    return InternedOrder(order=order, lane_id=lane_id, columns=(*named, *rules), tags=list(order.tags) or None)


async def accept(place: Database | Session, interned: InternedOrder, inputs: Sequence[bytes]) -> list[int]:
    """Enqueue `inputs` in one statement and return their ids, in a new transaction or in that of a session."""
    lines = _lines(inputs) if place.is_utf8 else None
    rows = await enqueue_sql.enqueue(place, *interned.columns, inputs if lines is None else None, interned.tags, lines)
    return rows[0][0] or []


def _lines(inputs: Sequence[bytes]) -> str | None:
    """Join inputs as lines of one text. Return None if that is impossible: our JSON has no line ends, but callers may
    pass JSON that was encoded elsewhere."""
    if sum(map(len, inputs)) > _LINES_BYTES_MAX:
        return None
    together = b"\n".join(inputs)
    if together.count(b"\n") != len(inputs) - 1 or b"\0" in together:
        return None
    try:
        return together.decode()
    except UnicodeDecodeError:
        return None


async def accept_one(place: Database | Session, interned: InternedOrder, encoded: bytes) -> int:
    """Enqueue one task and return its id."""
    return await enqueue_sql.enqueue_one(place, *interned.columns, encoded, interned.tags)


async def _accept_copy(place: Database | Session, interned: InternedOrder, inputs: Sequence[bytes]) -> int:
    [encoded] = inputs
    original = interned.order.original_task_id
    assert original is not None
    row = await enqueue_sql.enqueue_copy(place, *interned.columns, encoded, interned.tags, original)
    return row.task_id


async def enqueue(
    engine: Engine,
    interned: InternedOrder,
    inputs: TaskInputs,
    *,
    keys: Sequence[str] | None = None,
) -> AcceptedBatch:
    """Enqueue tasks in a transaction of their own, optionally under keys, and notify workers unless the tasks are
    delayed."""
    if not engine.catalog.allowance.is_open(interned.order.tenant_id):
        await _require_allowance(engine.catalog, interned, inputs, keys)
    if keys is None and not isinstance(inputs, InputBatches):
        # One statement is a transaction of its own and needs no further round trips.
        accepted = await _accept_inputs(engine.database, interned, inputs)
    else:
        accepted = await _enqueue_in_new_transaction(engine, interned, inputs, keys)
    if not interned.order.delay_seconds:
        engine.notifier.notify(lanes=(interned.lane_id,))
    return accepted


async def enqueue_in(
    session: Session,
    catalog: Catalog,
    interned: InternedOrder,
    inputs: TaskInputs,
    *,
    keys: Sequence[str] | None = None,
) -> AcceptedBatch:
    """Enqueue tasks in the transaction open on `session`, optionally under keys. The caller notifies workers after its
    commit."""
    await _require_allowance(catalog, interned, inputs, keys, session=session)
    return await _accept(session, catalog, interned, inputs, keys)


async def _require_allowance(
    catalog: Catalog,
    interned: InternedOrder,
    inputs: TaskInputs,
    keys: Sequence[str] | None,
    *,
    session: Session | None = None,
) -> None:
    key = keys[0] if keys is not None and len(keys) == 1 else None
    await catalog.allowance.require(interned.order.tenant_id, len(inputs), key=key, session=session)


async def _enqueue_in_new_transaction(
    engine: Engine, interned: InternedOrder, inputs: TaskInputs, keys: Sequence[str] | None
) -> AcceptedBatch:
    """Open a transaction and enqueue in it. With keys it is repeated after a broken connection: a key that was accepted
    is found, not enqueued again."""
    for repeats_left in reversed(range(1 if keys is None else _REPEATS_MAX)):
        try:
            async with engine.database.transaction() as session:
                return await _accept(session, engine.catalog, interned, inputs, keys)
        except Unavailable:
            if not repeats_left:
                raise
    raise AssertionError("unreachable")


async def _accept(
    session: Session,
    catalog: Catalog,
    interned: InternedOrder,
    inputs: TaskInputs,
    keys: Sequence[str] | None,
) -> AcceptedBatch:
    if isinstance(inputs, InputBatches):
        assert keys is None, "many batches have no keys"
        spend = partial(catalog.allowance.spend, interned.order.tenant_id)
        task_ids = await _accept_batches(session, interned, inputs.encoded(spend))
        return AcceptedBatch(task_ids=task_ids, lane_id=interned.lane_id)
    if keys is None:
        return await _accept_inputs(session, interned, inputs)
    order, tags = interned.order, interned.tags
    task_ids, is_new = await _accept_keyed(session, interned.columns, order, inputs, tags, keys)
    return AcceptedBatch(task_ids=task_ids, lane_id=interned.lane_id, is_new=is_new)


async def _accept_inputs(place: Database | Session, interned: InternedOrder, inputs: Sequence[bytes]) -> AcceptedBatch:
    """Enqueue `inputs` in one statement."""
    if interned.order.original_task_id is not None:
        task_ids = [await _accept_copy(place, interned, inputs)]
    elif len(inputs) == 1:
        task_ids = [await accept_one(place, interned, inputs[0])]
    else:
        task_ids = await accept(place, interned, inputs)
    return AcceptedBatch(task_ids=task_ids, lane_id=interned.lane_id)


async def _accept_batches(session: Session, interned: InternedOrder, batches: Iterable[list[bytes]]) -> list[int]:
    """Enqueue batch after batch in the transaction open on `session`, encoding the next batch while the last is
    stored."""
    task_ids: list[int] = []
    storing: asyncio.Task[list[int]] | None = None
    try:
        for batch in batches:
            if storing is not None:
                task_ids += await storing
            storing = asyncio.ensure_future(accept(session, interned, batch))
            # One pass of the event loop sends the statement; the server then executes it while the next batch is
            # encoded.
            await asyncio.sleep(0)
    finally:
        if storing is not None:
            await asyncio.wait([storing])
    return task_ids if storing is None else task_ids + storing.result()


async def _accept_keyed(
    session: Session,
    columns: tuple[int, int, int, int, int, int, float],
    order: EnqueueOrder,
    inputs: Sequence[bytes],
    tags: list[str] | None,
    keys: Sequence[str],
) -> tuple[list[int], bool]:
    is_new, rows = False, []
    # The task of a key may be deleted after the key was found and before it is read. The key is then free again, so the
    # enqueue is repeated.
    for _ in range(_REPEATS_MAX):
        fresh = await enqueue_sql.enqueue_keyed(
            session, *columns, inputs, tags, keys, order.action, order.original_task_id
        )
        is_new = is_new or bool(fresh)
        rows = await enqueue_sql.find_keys(session, order.tenant_id, keys, inputs, order.action)
        if len(rows) == len(keys):
            break
    else:
        raise key_is_moving()
    for row in rows:
        if not row.is_same:
            raise Conflict(
                f"The key {row.key!r} already stands for task {row.task_id}: another input or another action.",
                code="idempotency_key_reused",
                advice="Use a new key for new work.",
                task_id=str(row.task_id),
            )
    return [row.task_id for row in rows], is_new


def key_is_moving() -> Unavailable:
    """Build the error for a key whose task was deleted during each of the repeated reads."""
    return Unavailable("What this key stands for is being deleted.", code="idempotency_key_in_use", advice="Try again.")
