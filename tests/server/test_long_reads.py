"""Checks that read for minutes hold a session each: a server makes two at once, and says when to try again."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.server.long_reads import LONG_READS_MAX

PATHS = ["/api/v1/audit/verify", "/api/v1/verify"]


@pytest.mark.parametrize("path", PATHS)
async def test_one_more_than_may_be_is_refused_for_now(call, engine, eventually, path):
    async with engine.database.transaction() as holder:
        # Everybody who reads the audit log waits here.
        await holder.execute("lock table holdfast.audit in access exclusive mode")
        reading = [asyncio.create_task(call.get(one)) for one in PATHS[:LONG_READS_MAX]]
        waiting = "select count(*) from pg_locks where relation = 'holdfast.audit'::regclass and not granted"
        await eventually(lambda: _are(engine, waiting, LONG_READS_MAX))
        refused = await call.get(path)
        assert (refused.status, refused.json["code"]) == (429, "too_many_long_reads")
        assert int(refused.headers["retry-after"]) > 0
    assert [answer.status for answer in await asyncio.gather(*reading)] == [200] * LONG_READS_MAX
    assert (await call.get(path)).status == 200


async def _are(engine, query, count):
    return await engine.database.fetchval(query) == count
