"""Actions write rows, readers read a view: what is committed, when, and what is not."""

from __future__ import annotations

import pytest

import holdfast as hf
from holdfast.testing.idle import run_until_idle

ORDERS = {"order_id": "bigint", "day": "date", "cents": "bigint", "note": "jsonb"}


@pytest.fixture
def app(holdfast_url):
    made = hf.App("shop", settings=hf.Settings(url=holdfast_url))
    made.dataset("orders", columns=ORDERS, key="order_id")
    return made


def rows(*order_ids: int, cents: int = 100):
    return [{"order_id": one, "day": "2026-11-15", "cents": cents, "note": {"from": "test"}} for one in order_ids]


async def test_rows_appear_with_the_completion_of_their_task(app, engine):
    @app.action
    async def ingest(ctx: hf.Context, first: int) -> int:
        return await ctx.dataset("orders").append(rows(first, first + 1))

    async with app.client() as client:
        tasks = await client.enqueue_many(ingest, [{"first": 1}, {"first": 2}])
        await run_until_idle(app, engine)
        print(await engine.database.fetch("select code, message, traceback from holdfast.failure"))
        assert [await task.result(timeout=5) for task in tasks] == [2, 2]
    found = await engine.database.fetch(
        "select order_id, cents, day::text, note->>'from' as n from holdfast_data.orders order by 1"
    )
    assert [tuple(row) for row in found] == [(one, 100, "2026-11-15", "test") for one in (1, 2, 3)]
