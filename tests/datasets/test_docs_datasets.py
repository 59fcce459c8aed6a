"""The examples of docs/datasets.md run as they stand."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.authoring.loader import load_app
from holdfast.testing.idle import run_until_idle

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "datasets.md").read_text()


BEGIN, CORRECT, NEXT, WORK = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def written(tmp_path, holdfast_url):
    """A file from pieces of the page."""

    def write(name: str, *pieces: str):
        path = tmp_path / f"docs_datasets_{name}.py"
        path.write_text("\n\n".join(pieces))
        app = load_app(f"{path}:app")
        app.configure(hf.Settings(url=holdfast_url))
        return sys.modules[app.actions["shop.ingest"].function.__module__]

    return write


async def test_the_page_holds(written, engine):
    shop = written("shop", BEGIN, CORRECT, WORK)
    [query] = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    async with shop.app.client() as client:
        await client.enqueue(shop.correct, day="2026-11-15", order_ids=[1, 2])
        await client.enqueue(shop.ingest, day="2026-11-16", order_ids=[3])
        assert await shop.work() == 2
        await client.enqueue(shop.correct, day="2026-11-15", order_ids=[2])
        await client.enqueue(shop.ingest, day="2026-11-15", order_ids=[3, 4])
        assert await shop.work() == 2
    found = {row["order_id"]: row["cents"] for row in await engine.database.fetch(query)}
    assert found == {2: 100, 3: 300, 4: 400}


async def test_the_new_version_of_the_page_is_built_and_cut_over(written, engine, holdfast_url):
    await run_until_idle(written("shop", BEGIN, CORRECT).app, holdfast_url)
    shop = written("next", NEXT, WORK)
    building = asyncio.create_task(shop.build())
    while not building.done():
        await run_until_idle(shop.app, holdfast_url)
    await building
    rows = await engine.database.fetch("select * from holdfast_data.orders order by 1")
    assert [(row["order_id"], row["currency"]) for row in rows] == [(1, "EUR"), (2, "EUR"), (3, "EUR")]
