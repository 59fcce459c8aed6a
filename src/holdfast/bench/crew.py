"""A crew: the processes of one measurement, started, waited for until ready, and ended with it.

A member leaves by itself when its stdin closes, so none survives the benchmark, however that ends.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from holdfast.errors import Unavailable

READY_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 15.0
SETTLE_SECONDS = 0.5
"""After `ready`, everybody opens the last connections; the clock starts after that."""


class Member:
    """A running helper process that speaks lines: it says when it is ready, and answers what it is asked."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def line(self, seconds_max: float) -> str:
        """The next line it says; an ended or silent process is an error."""
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), seconds_max)
        except TimeoutError:
            raise Unavailable(f"A benchmark process said nothing for {seconds_max:g} s.", code="bench_silent") from None
        if not line:
            await self._process.wait()
            raise Unavailable(
                f"A benchmark process ended with code {self._process.returncode}.",
                code="bench_process_failed",
                advice="Its own words are above.",
            )
        return line.decode().strip()

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    def kill(self) -> None:
        self._process.kill()

    async def gone(self) -> None:
        await self._process.wait()

    async def stop(self) -> None:
        """Let it leave by itself, else end it."""
        if not self.is_alive:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), STOP_SECONDS_MAX)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


async def begin(module: str, orders: msgspec.Struct) -> Member:
    """Start `python -m module ORDERS`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        msgspec.json.encode(orders).decode(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    return Member(process)


@asynccontextmanager
async def crew(module: str, orders: Sequence[msgspec.Struct]) -> AsyncIterator[list[Member]]:
    """Start one process per order; the block runs when all are ready."""
    members: list[Member] = []
    try:
        for one in orders:
            members += [await begin(module, one)]
        for member in members:
            await member.line(READY_SECONDS_MAX)
        await asyncio.sleep(SETTLE_SECONDS)
        yield members
    finally:
        await asyncio.gather(*(member.stop() for member in members))
