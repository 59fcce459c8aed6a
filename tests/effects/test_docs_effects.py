"""The examples of docs/effects.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import asyncpg
import pytest

from holdfast.client.client import Client
from holdfast.settings.settings import Settings
from holdfast.testing.idle import run_until_idle

PAGE = Path(__file__).resolve().parents[2] / "docs" / "effects.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def example(*blocks: int) -> dict:
    """Some blocks of the page, as one module."""
    namespace: dict = {"__name__": "effects_page"}
    exec(compile("\n".join(BLOCKS[block] for block in blocks), str(PAGE), "exec"), namespace)
    return namespace


@pytest.fixture
def run(engine, clock):
    """Run one task of an example to its end."""

    async def work(page, action, **given):
        app = page["app"]
        app.configure(Settings(url=engine.database.url))
        async with Client(app.settings, app.actions) as client:
            task = await client.enqueue(page[action], **given)
            await run_until_idle(app, engine, clock=clock)
            return await client.result(task.task_id, timeout=5)

    return work


def test_every_block_is_tried():
    assert len(BLOCKS) == 5


@pytest.mark.slow("it starts and kills worker processes; test_the_mistakes_are_found is fast")
async def test_the_first_example_runs_and_is_safe_to_retry(run):
    page = example(0, 1)
    assert await run(page, "send_receipt", order_id=7) == {"message_id": "mail-1"}
    await page["test_a_receipt_is_safe_to_retry"]()


async def test_the_mistakes_are_found():
    page = example(2)
    await page["test_two_mistakes_are_found"]()


async def test_a_booking_is_made_under_the_lease(run, holdfast_url):
    connection = await asyncpg.connect(holdfast_url)
    try:
        await connection.execute("create table booking (order_id int)")
        await run(example(3), "book", url=holdfast_url, order_id=7)
        assert await connection.fetchval("select order_id from booking") == 7
    finally:
        await connection.close()


async def test_the_charge_can_be_undone(run, engine, clock):
    page = example(4)
    await run(page, "charge", order_id=7)
    async with page["app"].client() as client:
        [effect] = await client.task("1").effects()
        await client.compensate(effect.idempotency_key, reason="wrong order")
    await run_until_idle(page["app"], engine, clock=clock)
    assert page["ledger"] == ["charged 7", "refunded ch_1"]
