"""Whoever holds one session of a pool asks it for no other: as many as it has sessions would wait for each other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests import one_session
from tests.sessions_scan import second_sessions

import holdfast
from holdfast.engine.identity import tenants

SOURCES = sorted(Path(holdfast.__file__).parent.rglob("*.py"))

BAD = """
async def pause(engine, name):
    async with engine.database.transaction() as session:
        row = await session.fetchrow("…", name)
        await engine.catalog.flows.learn([1], session)
        if row is None:
            raise await missing(engine.database, name)

async def lend(session: Session, catalog):
    return await catalog.lane_id(1, "q", "a")

async def submit(self, *, connection=None):
    theirs = joined(connection)
    await self.catalog.allowance.require(1, 1)
"""


def test_nothing_that_holds_a_session_asks_for_another():
    assert [found for path in SOURCES for found in second_sessions(path)] == []


def test_the_scan_finds_each_way_to_do_so(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text(BAD)
    assert [one.partition(": ")[2] for one in second_sessions(bad)] == [
        "missing(engine.database, name)",
        "catalog.lane_id(1, 'q', 'a')",
        "self.catalog.allowance.require(1, 1)",
    ]


async def test_a_second_session_is_noticed_while_a_test_runs(engine, monkeypatch):
    async def unknown(_, name):
        return LookupError(await engine.database.fetchval("select $1::text", name))

    monkeypatch.setattr(tenants, "_unknown", unknown)
    with pytest.raises(LookupError):
        await tenants.limit_tenant(engine.database, "nobody", max_running=1, actor="me", reason="")
    noticed, one_session.violations[:] = len(one_session.violations), []
    assert noticed


async def test_two_tasks_may_hold_one_session_each(engine):
    await asyncio.gather(*(tenants.list_tenants(engine.database) for _ in range(2)))
    async with engine.database.session():
        await tenants.list_tenants(engine.database)
    assert not one_session.violations
