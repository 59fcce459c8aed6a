"""A log that takes no rows: a privileged change that cannot be recorded does not happen."""

from __future__ import annotations

from contextlib import asynccontextmanager

import asyncpg
import pytest

from holdfast.errors import Conflict, DispatchFailed


async def picture(engine) -> list[str]:
    """Everything a privileged change could change."""
    names = "queue live ended worker run node signal schedule slot dataset dataset_generation effect authority event"
    names += " quota breaker tally dead_letter campaign campaign_letter audit audit_head"
    return [
        await engine.database.fetchval(
            f"select coalesce(string_agg(t::text, ';' order by t::text), '') from holdfast.{name} t"
        )
        for name in names.split()
    ]


@asynccontextmanager
async def full_disk(engine):
    """Nothing can be recorded, and whatever is tried meanwhile changes nothing."""
    async with engine.database.session() as session:
        await session.execute("alter table holdfast.audit add constraint full_disk check (false) not valid")
    before = await picture(engine)
    yield
    assert await picture(engine) == before
    async with engine.database.session() as session:
        await session.execute("alter table holdfast.audit drop constraint full_disk")


async def is_refused(change):
    with pytest.raises((asyncpg.CheckViolationError, Conflict, DispatchFailed)) as refused:
        await change()
    assert "full_disk" in str(refused.value.__cause__ or refused.value)
