"""The examples of docs/executors.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.client.client import Client
from holdfast.settings.settings import Settings
from holdfast.testing.idle import run_until_idle

PAGE = Path(__file__).resolve().parents[2] / "docs" / "executors.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def run(engine):
    """Run one task of an example, and give the example with its output."""

    async def work(block, action, **given):
        page: dict = {"__name__": "executors_page"}
        exec(compile(BLOCKS[block], str(PAGE), "exec"), page)
        async with Client(Settings(url=engine.database.url), page["app"].actions) as client:
            task = await client.enqueue(page[action], **given)
            await run_until_idle(page["app"], engine)
            return page, await task.result(5)

    return work


def test_every_block_is_tried():
    assert len(BLOCKS) == 4


async def test_a_span_stands_around_the_call(run):
    page, output = await run(0, "price", order_id=7)
    assert (output, page["spans"]) == (700, ["shop.price begins", "shop.price ends"])
    assert page["price"](7) == 700 and len(page["spans"]) == 2, "a plain call has no executor"


async def test_a_sandbox_stands_in_for_the_call(run):
    _, output = await run(1, "run_plugin", name="resize")
    assert output == {"ran": "plugins.run_plugin", "with": {"name": "resize"}}


async def test_a_second_call_sends_nothing_twice(run):
    page, output = await run(2, "remind")
    assert (output, page["sent"], page["moods"]) == ("a reminder was sent", ["a reminder"], [])


async def test_a_clock_tells_the_hour(run):
    assert (await run(3, "greeting"))[1] == "Good afternoon"
