"""A private Redis for the peers that need one: own port and directory, appendonly, ended with the benchmark."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.errors import Unavailable
from holdfast_bench.crew import launch

START_SECONDS_MAX = 10.0
GUARD = Path(__file__).with_name("guard.py")


def is_installed() -> bool:
    return shutil.which("redis-server") is not None


@asynccontextmanager
async def start() -> AsyncIterator[str]:
    """Yield the URL of an empty Redis that syncs its log every second, its usual durable setting."""
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-redis-") as folder:
        options = {"--port": str(port), "--bind": "127.0.0.1", "--dir": folder, "--save": ""}
        options |= {"--appendonly": "yes", "--appendfsync": "everysec"}
        words = [word for option in options.items() for word in option]
        server = await launch([sys.executable, str(GUARD), f"{folder}/log", "redis-server", *words])
        try:
            await _until_ready(port)
            yield f"redis://127.0.0.1:{port}"
        finally:
            await server.stop()


async def _until_ready(port: int) -> None:
    for _ in range(int(START_SECONDS_MAX / 0.05)):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
            continue
        writer.write(b"PING\r\n")
        answer = await reader.readline()
        writer.close()
        if answer.startswith(b"+PONG"):
            return
        await asyncio.sleep(0.05)
    raise Unavailable("a private Redis did not start.", code="redis_not_started")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
