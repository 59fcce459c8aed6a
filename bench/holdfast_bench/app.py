"""The measured app: its actions only leave a mark. Workers load it as `holdfast_bench.app:app`."""

from __future__ import annotations

import asyncio
import os
from functools import cache
from pathlib import Path

from holdfast.authoring.app import App
from holdfast.core.tasks.signals import Fatal
from holdfast_bench.marks import Marks

REF = "holdfast_bench.app:app"
MARKS_VARIABLE, CAPACITY_VARIABLE = "BENCH_MARKS", "BENCH_CAPACITY"
QUEUE, OTHER_QUEUE, MENDED_QUEUE = "bench", "bench_other", "bench_mended"
HANG_SECONDS = 3600.0

app = App("bench")


@cache
def _marks() -> Marks:
    return Marks(Path(os.environ[MARKS_VARIABLE]), int(os.environ[CAPACITY_VARIABLE]))


@app.action(queue=QUEUE)
async def hit(i: int) -> None:
    """Leave a mark."""
    _marks().hit(i)


@app.action(queue=QUEUE)
async def hang(i: int) -> None:
    """Leave a mark and, on the first execution, never return."""
    marks = _marks()
    marks.hold(i)
    if marks.hit(i) == 0:
        await asyncio.sleep(HANG_SECONDS)


@app.action(queue=QUEUE)
async def step(base: int, i: int, values: list[int] | None = None) -> dict[str, int]:
    """Run as a node: leave a mark and pass on the number of the run's first mark."""
    _marks().hit(base + i)
    return {"base": base}


@app.action(queue=QUEUE)
async def link(base: int, i: int) -> None:
    """Leave a mark as plain work of another action, in its own lane."""
    _marks().hit(base + i)


@app.action(queue=QUEUE, max_retries=3)
async def fail(i: int) -> None:
    """Fail as if another service were down."""
    raise ConnectionRefusedError("connection refused")


@app.action(queue=QUEUE, max_retries=3, breaker={"open_seconds": 10})
async def fail_guarded(i: int) -> None:
    """Fail in the same way, behind a breaker."""
    raise ConnectionRefusedError("connection refused")


@app.action(queue=MENDED_QUEUE)
async def mend(i: int) -> None:
    """Fail for good until the last mark is set."""
    marks = _marks()
    if not marks.count(marks.capacity - 1):
        raise Fatal("not mended yet")


@app.action(queue=OTHER_QUEUE)
async def other(i: int) -> None:
    """Wait in a queue that no worker of the benchmark serves."""
    _marks().hit(i)
