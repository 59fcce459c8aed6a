"""Several callers may wait for one task."""

from __future__ import annotations

import asyncio

import pytest

import holdfast as hf
from holdfast.errors import WaitTimeout
from holdfast.testing.idle import run_until_idle

app = hf.App("waits")


@app.action
async def double(number: int) -> int:
    return number * 2


async def test_one_caller_who_gives_up_does_not_strand_the_other(engine):
    app.configure(hf.Settings(url=engine.database.url))
    async with app.client() as client:
        task = await client.enqueue(double, number=21)
        patient = asyncio.ensure_future(task.result(timeout=20))
        with pytest.raises(WaitTimeout):
            await task.result(timeout=0.05)
        await run_until_idle(app, engine)
        assert await patient == 42
