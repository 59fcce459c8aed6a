"""Where a check plays: a database of its own, the verbs of the engine, and some hands on locks and time."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from tests.waiting import waits

from holdfast.core.tasks.outcome import Released
from holdfast.engine.engine import Engine
from holdfast.engine.launching.attach import Reservation
from holdfast.engine.leases import report_of
from holdfast.engine.lifecycle.tasks.claim_named import claim_task
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.errors import LeaseLost
from holdfast.store.catalog import Catalog
from holdfast.testing.clock import DatabaseClock
from holdfast.testing.engine_harness import EngineHarness, HeldLease
from holdfast.testing.factories import (
    a_task,
)

OTHER_TENANT_ID = 2
IMPATIENT = "set lock_timeout = '200ms'; set deadlock_timeout = '30ms'"


@dataclass(frozen=True, slots=True)
class Stage:
    """A database of the check's own and hands on its verbs."""

    engine: Engine
    harness: EngineHarness
    clock: DatabaseClock

    async def value(self, query: str, *arguments: Any) -> Any:
        return await self.engine.database.fetchval(query, *arguments)

    async def state(self, task_id: str) -> str:
        return str((await self.harness.task(task_id)).state)

    @asynccontextmanager
    async def impatient(self) -> Any:
        """A session of its own that would rather fail than wait for a lock."""
        session = await self.engine.database.connect()
        try:
            await session.execute(IMPATIENT)
            yield session
        finally:
            await session.close()

    async def waits(self, verb: asyncio.Future[Any]) -> None:
        """Until the verb waits for a lock somebody holds, or is over without."""
        await waits(self.engine.database, verb)


Check = Callable[[Stage], Awaitable[None]]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


async def another_tenant(stage: Stage) -> None:
    await stage.engine.database.fetch(
        "insert into holdfast.tenant (tenant_id, name) values ($1, 'other') on conflict do nothing", OTHER_TENANT_ID
    )


async def elsewhere(stage: Stage) -> EngineHarness:
    """The verbs of another tenant, directly on the database."""
    await another_tenant(stage)
    engine = copy.copy(stage.engine)
    engine.tenant_id = OTHER_TENANT_ID
    engine.catalog = Catalog(engine.database)
    return EngineHarness(engine)


def forged(lease: HeldLease, **changes: Any) -> HeldLease:
    """A lease somebody made up from what they know of a real one."""
    return msgspec.structs.replace(lease, claimed=msgspec.structs.replace(lease.claimed, **changes))


def refuses(*errors: type[Exception]) -> Any:
    return pytest.raises(errors or LeaseLost)


@asynccontextmanager
async def handed_over(stage: Stage, lease: HeldLease) -> Any:
    """Inside a transaction the lease ends and another worker gets the task; it commits when the block is left."""
    thief = (await stage.harness._claimer("second")).identity
    async with stage.engine.database.transaction() as session:
        await settle(session, stage.engine.catalog, [report_of(lease.claimed, Released())])
        await claim_task(session, thief, lease.claimed.task_id)
        yield


async def named_beside_a_claim(stage: Stage, task_id: str) -> Any:
    """What claiming a task by its name comes to while a claim that took another one is not committed."""
    first = await stage.harness._claimer("first")
    async with stage.engine.database.transaction() as session:
        assert len(await first.claim(session, 1, now=0.0)) == 1
        claiming = asyncio.ensure_future(stage.harness.claim_task(task_id, worker="second"))
        await stage.waits(claiming)
    [found] = await asyncio.gather(claiming, return_exceptions=True)
    return found


async def claimed_at_once(stage: Stage) -> tuple[int, int]:
    """How many of two tasks a claimer gets, and how many another one that comes before that is committed."""
    first, second = await stage.harness._claimer("first"), await stage.harness._claimer("second")

    async def claim_too() -> int:
        async with stage.engine.database.session() as other:
            return len(await second.claim(other, 2, now=0.0))

    async with stage.engine.database.transaction() as session:
        got = len(await first.claim(session, 2, now=0.0))
        claiming = asyncio.ensure_future(claim_too())
        await stage.waits(claiming)
    return got, await claiming


async def reserved(stage: Stage) -> Reservation:
    task = await stage.harness.enqueue(a_task())
    reservation = await stage.harness.reserve(task.task_id, launch_seconds=30)
    assert reservation is not None
    return reservation
