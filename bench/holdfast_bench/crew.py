"""A group of helper processes for one measurement, started together and ended with it.

A helper takes its orders as one line on stdin and ends by itself when stdin closes, so none survives the benchmark,
however that ends. Orders contain a database URL, which arguments would show to every user of the machine.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from holdfast.errors import Unavailable

READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 20.0
SETTLE_SECONDS = 0.5
"""Pause after all are ready, in which the processes open their last connections; the measurement starts after it."""


class Member:
    """A running helper process that communicates in lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def line(self, seconds_max: float) -> str:
        """Return the next line of its output; raise an error if it ended or is silent."""
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), seconds_max)
        except TimeoutError:
            raise Unavailable(f"A benchmark process said nothing for {seconds_max:g} s.", code="bench_silent") from None
        if not line:
            await self._process.wait()
            raise ended(self._process.returncode)
        return line.decode().strip()

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    async def gone(self) -> int:
        return await self._process.wait()

    async def stop(self) -> None:
        """Let it end by itself, else kill it."""
        if not self.is_alive:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), STOP_SECONDS_MAX)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


async def launch(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    log: int | None = None,
) -> Member:
    """Start a helper process; its stderr goes to ours, or to `log`."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=log,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
    )
    return Member(process)


@asynccontextmanager
async def crew(module: str, orders: Sequence[msgspec.Struct]) -> AsyncIterator[list[Member]]:
    """Start one `python -m module` per order."""
    members: list[Member] = []
    try:
        for one in orders:
            member = await launch([sys.executable, "-m", module])
            members.append(member)
            member.say(msgspec.json.encode(one).decode())
        yield members
    finally:
        await asyncio.gather(*(member.stop() for member in members))


def ended(code: int | None) -> Unavailable:
    return Unavailable(
        f"A benchmark process ended with code {code}.", code="bench_process_failed", advice="Its own words are above."
    )
