"""The other side of the HTTP measurements: a server or many connections, as a process with its orders on stdin.

It prints one line when it is ready and ends when its stdin closes.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import sys
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from holdfast._internal.gc_tuning import tune_gc
from holdfast.engine.engine import Engine
from holdfast.engine.maintenance.loops import Loops
from holdfast.errors import HoldfastError
from holdfast.protocol.worker import Claim, Completion, HandedTask, Register, Registered
from holdfast.server.app import serving
from holdfast.settings.settings import HttpSettings, Settings
from holdfast.worker.transport.http import LATE_SECONDS, WAIT_PARTS
from holdfast.worker.transport.http_connection import HttpConnection, Server
from holdfast_bench.app import QUEUE, hit
from holdfast_bench.http import CrowdOrders, ServerOrders
from holdfast_bench.marks import Marks

SESSIONS_MAX = 20
STAGGER_SECONDS = 0.002
_UNHURRIED = HttpSettings(
    peer_requests_per_second=1_000_000,
    peer_requests_burst=1_000_000,
    caller_requests_per_second=1_000_000,
    caller_requests_burst=1_000_000,
    tenant_requests_per_second=1_000_000,
    tenant_requests_burst=1_000_000,
)
"""No rate limits: one caller sends all requests here, and responses are measured, not limits."""


class _Claimed(msgspec.Struct, frozen=True):
    tasks: list[HandedTask]


class _Input(msgspec.Struct, frozen=True):
    i: int


async def _serve(orders: ServerOrders) -> None:
    settings = Settings(url=orders.url, env="local", port=0, http=_UNHURRIED)
    async with Engine(orders.url, settings, sessions_max=SESSIONS_MAX) as engine, serving(engine) as url:
        tune_gc()
        loops = asyncio.create_task(Loops(engine).run())
        print(url, flush=True)
        await _stdin_closed()
        loops.cancel()
        await asyncio.gather(loops, return_exceptions=True)


async def _crowd(orders: CrowdOrders) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else max(soft, 8192), hard))
    marks = Marks(Path(orders.marks), orders.capacity)
    server = Server.of(orders.url, Settings(env="local"))
    tasks = []
    for number in range(max(orders.pollers, orders.readers)):
        if number < orders.pollers:
            calls = HttpConnection(server)
            body = Register(f"poller-{number}", [QUEUE], [hit.name], slots=1)
            registered = await calls.post("/internal/workers", body, Registered)
            tasks.append(asyncio.create_task(_poll(calls, registered, marks)))
        if number < orders.readers:
            tasks.append(asyncio.create_task(_read(server)))
        await asyncio.sleep(STAGGER_SECONDS)
    print("ready", flush=True)
    await _stdin_closed()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _poll(calls: HttpConnection, registered: Registered, marks: Marks) -> None:
    """Run a worker with one slot: wait for a task as Holdfast's workers do, mark it, complete it."""
    while True:
        try:
            seconds = registered.wait_seconds_max * random.uniform(*WAIT_PARTS)
            body = Claim(registered.worker_id, limit=1, wait_seconds=seconds)
            found = await calls.post("/internal/task-claim", body, _Claimed, seconds_max=seconds + LATE_SECONDS)
            for task in found.tasks:
                marks.hit(msgspec.json.decode(task.input, type=_Input).i)
                done = Completion(task.task_id, task.attempt, task.lease_token, "completed")  # type: ignore[arg-type]
                await calls.post("/internal/task-complete", done, dict[str, Any])
        except HoldfastError as error:
            print(f"a poller failed: {error}", file=sys.stderr)
            await asyncio.sleep(1.0)


async def _read(server: Server) -> None:
    """Read the event stream."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(f"GET /api/v1/events HTTP/1.1\r\n{server.headers}\r\n".encode())
    while await reader.read(65536):
        pass


async def _stdin_closed() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(1024):
        pass


def main() -> None:
    orders = msgspec.json.decode(_first_line(), type=ServerOrders | CrowdOrders)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(orders) if isinstance(orders, ServerOrders) else _crowd(orders))


def _first_line() -> bytes:
    """Read byte by byte, so that nothing that follows the line ends up in a buffer."""
    line = bytearray()
    while (one := os.read(sys.stdin.fileno(), 1)) not in (b"\n", b""):
        line += one
    return bytes(line)


if __name__ == "__main__":
    main()
