"""What launched workers run in these tests."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import holdfast as hf

app = hf.App("launched")


@app.action(launcher="here", queue="launched")
async def add(a: int, b: int) -> dict:
    return {"sum": a + b, "pid": os.getpid(), "has_token": "HOLDFAST_LAUNCH_TOKEN" in os.environ}


@app.action(launcher="here", queue="launched", max_losses=0, max_retries=0)
async def hang(ctx: hf.Context, where: str) -> None:
    """Say that it runs, and go on until it is stopped."""
    Path(where).write_text(str(os.getpid()))  # noqa: ASYNC240 - a few bytes
    await asyncio.sleep(3600)


@app.action(launcher="here", queue="launched", isolation="process")
def apart(n: int) -> int:
    return n * n


@app.action(launcher="here", queue="launched")
async def survive(ctx: hf.Context, where: str) -> int:
    """Hang at the first attempt, and answer at the next which one it was."""
    if ctx.attempt == 1:
        Path(where).write_text(str(os.getpid()))  # noqa: ASYNC240 - a few bytes
        await asyncio.sleep(3600)
    return ctx.attempt
