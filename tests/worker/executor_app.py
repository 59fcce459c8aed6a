"""An app with an executor, for attempts in processes of their own; the journal says what became of them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from contextvars import ContextVar
from datetime import UTC, datetime

from tests.worker.fleet_app import begin, write

import holdfast as hf

span: ContextVar[str] = ContextVar("span", default="none")


class Around:
    """Does what the input `how` says, and calls the function around which it stands."""

    async def execute(self, attempt: hf.Attempt) -> object:
        before = span.get()
        span.set("around")
        how = attempt.arguments.get("how", "call")
        try:
            return {"before": before, "pid": os.getpid(), "output": await getattr(self, how)(attempt)}
        finally:
            write(f"{how}-ended", attempt.context)

    async def call(self, attempt):
        return await attempt.call()

    async def never(self, attempt):
        return attempt.arguments

    async def twice(self, attempt):
        return await asyncio.gather(attempt.call(), attempt.call())

    async def in_time(self, attempt):
        try:
            async with asyncio.timeout(0.05):
                return await attempt.call()
        except TimeoutError:
            return "late"

    async def hang(self, attempt):
        begin(attempt.context)
        await asyncio.Event().wait()

    async def acting(self, attempt):
        ctx = attempt.context
        return [await ctx.effect("box", str, "a"), await ctx.step("plan", str, "b"), await attempt.call()]


class Fixed:
    def now(self) -> datetime:
        return datetime(2030, 1, 2, tzinfo=UTC)


app = hf.App("around", executor=Around(), clock=Fixed())


@app.action(isolation="process", memory_bytes_max=64 * 1024 * 1024, max_retries=0)
def plain(ctx: hf.Context, how: str = "call", megabytes: int = 1) -> dict:
    """Says where it runs; a loop of its own is its right."""
    size = len(bytearray(megabytes * 1024 * 1024))
    is_main = threading.current_thread() is threading.main_thread()
    awaited = asyncio.run(asyncio.sleep(0, "slept"))
    return {"pid": os.getpid(), "span": span.get(), "is_main": is_main, "awaited": awaited, "size": size}


@app.action(isolation="process", max_retries=0)
async def coroutine(ctx: hf.Context, how: str = "call") -> dict:
    return {"pid": os.getpid(), "span": span.get(), "at": ctx.now().isoformat()}


@app.action(isolation="process", max_retries=0)
def send(ctx: hf.Context, how: str = "acting") -> str:
    return ctx.effect("mail", str, ctx.step("text", str, "inner"))


@app.action(isolation="process", timeout=0.3, max_retries=0)
def never_listen(ctx: hf.Context, how: str = "call") -> None:
    """Ends only when the signal raises in it."""
    begin(ctx)
    try:
        while True:
            time.sleep(60)
    finally:
        write("terminated", ctx)


@app.action(isolation="process", max_retries=0)
def until_told(ctx: hf.Context, how: str = "call") -> str:
    begin(ctx)
    while not ctx.is_canceled:
        time.sleep(0.005)
    write("stop", ctx)
    return "told"


@app.action(isolation="process", max_retries=0)
def leave(how: str = "call") -> None:
    raise SystemExit("left")


@app.action(isolation="process", max_retries=0, timeout=0.3)
async def waiting(how: str = "hang") -> None:
    """Its executor does not come to it."""


@app.action(isolation="process", max_retries=0, timeout=0.3)
def waiting_plainly(how: str = "hang") -> None:
    """Its executor does not come to it."""
