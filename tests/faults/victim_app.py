"""The app that the fault tests run: every execution is written down outside the database before anything else happens.

One short line per execution, appended by one write, so that lines of many processes never mix and a killed process
leaves whole lines behind.
"""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import holdfast as hf

app = hf.App("faults")

LOG_VARIABLE = "FAULTS_LOG"
PATIENT = {"base_backoff_secs": 0.05, "max_backoff_secs": 0.2}


def executed(ctx: hf.Context) -> None:
    descriptor = os.open(os.environ[LOG_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{ctx.task_id} {ctx.attempt} {os.getpid()}\n".encode())
    finally:
        os.close(descriptor)


@app.action(max_losses=50, retry=PATIENT)
async def quick(ctx: hf.Context, number: int) -> list[int]:
    executed(ctx)
    return [number, os.getpid()]


@app.action(max_losses=50, retry=PATIENT)
async def waiting(ctx: hf.Context, number: int, seconds: float) -> list[int]:
    executed(ctx)
    await asyncio.sleep(seconds)
    return [number, os.getpid()]


@app.action(max_losses=50, retry=PATIENT)
def blocking(ctx: hf.Context, number: int, seconds: float) -> list[int]:
    executed(ctx)
    threading.Event().wait(seconds)
    return [number, os.getpid()]


@app.action(max_losses=50, max_retries=30, retry=PATIENT)
async def flaky(ctx: hf.Context, number: int) -> list[int]:
    executed(ctx)
    if ctx.attempt < 3:
        raise ConnectionError("connection reset by peer")
    return [number, os.getpid()]


@app.action(max_losses=50, retry=PATIENT)
def gated(ctx: hf.Context, number: int, gate: str) -> list[int]:
    """Ends when the file exists, and appends to it that it did."""
    executed(ctx)
    while not Path(gate).exists():
        threading.Event().wait(0.01)
    with Path(gate).open("a") as file:
        file.write("over\n")
    return [number, os.getpid()]


@app.action(max_losses=50, retry=PATIENT)
async def stuck_once(ctx: hf.Context, number: int) -> list[int]:
    """The first attempt runs until somebody stops it."""
    executed(ctx)
    if ctx.attempt == 1:
        await asyncio.Event().wait()
    return [number, os.getpid()]
