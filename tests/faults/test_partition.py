"""A worker over HTTP whose packets vanish: real network namespaces, joined by a virtual cable.

Both ends have loopback addresses of their own namespace, so nothing leaves this machine. It takes root and iproute2.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest
from tests.waiting import poll

from holdfast.testing.run_coroutine import run_coroutine

pytestmark = [pytest.mark.crash, pytest.mark.xdist_group("namespaces")]

SERVER, WORKER = "127.77.0.1", "127.77.0.2"
PARTITION_SECONDS = 14
"""Long enough for the kernel to wait for another ten seconds or so before it sends again on an old connection."""
APP = """
import holdfast as hf
app = hf.App("cut")

@app.action
def note(n: int) -> int:
    return n
"""


@dataclass(frozen=True, slots=True)
class Cable:
    """Two namespaces and the way between them."""

    server: str
    worker: str

    def run(self, where: str, *command: str) -> None:
        subprocess.run(["ip", "-n", where, *command], check=True, capture_output=True)

    def cut(self) -> None:
        """Whatever the server sends is dropped without a word."""
        self.run(self.server, "route", "add", "blackhole", f"{WORKER}/32")

    def mend(self) -> None:
        self.run(self.server, "route", "del", "blackhole", f"{WORKER}/32")

    def start(self, where: str, *words: str, environ: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
        command = ["ip", "netns", "exec", where, sys.executable, "-m", "holdfast", *words]
        return subprocess.Popen(command, env={**os.environ, **environ}, stdout=log.open("w"), stderr=subprocess.STDOUT)


@pytest.fixture
def cable() -> Iterator[Cable]:
    if os.getuid() or shutil.which("ip") is None:
        pytest.skip("network namespaces take root and iproute2 (`apt-get install iproute2`)")
    name = uuid.uuid4().hex[:8]
    cable = Cable(f"hf-s-{name}", f"hf-w-{name}")
    made = []
    try:
        for namespace in (cable.server, cable.worker):
            if subprocess.run(["ip", "netns", "add", namespace], capture_output=True).returncode:
                pytest.skip("this machine lets nobody make network namespaces")
            made.append(namespace)
        ends = (cable.server, f"s{name}", SERVER), (cable.worker, f"w{name}", WORKER)
        cable.run(cable.server, "link", "add", ends[0][1], "type", "veth", "peer", "name", ends[1][1])
        cable.run(cable.server, "link", "set", ends[1][1], "netns", cable.worker)
        for namespace, device, address in ends:
            # Loopback addresses without the loopback device: they count as this machine, and go over the cable.
            path = f"/proc/sys/net/ipv4/conf/{device}/route_localnet"
            subprocess.run(["ip", "netns", "exec", namespace, "sh", "-c", f"echo 1 > {path}"], check=True)
            cable.run(namespace, "addr", "add", f"{address}/24", "dev", device)
            cable.run(namespace, "link", "set", device, "up")
        yield cable
    finally:
        for namespace in made:
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)


def test_a_worker_is_back_soon_after_a_partition_ends(cable, holdfast_url, tmp_path):
    """The kernel repeats what it has to send on an old connection ever more rarely: the worker must not wait for it."""
    (tmp_path / "app.py").write_text(APP)
    environ = {"HOLDFAST_URL": holdfast_url, "HOLDFAST_ENV": "local", "HOLDFAST_UNSAFE": "1"}
    logs = {name: tmp_path / f"{name}.log" for name in ("server", "worker")}
    serving = cable.start(
        cable.server, "server", "--host", SERVER, "--port", "8787", environ=environ, log=logs["server"]
    )
    working = None
    try:
        poll(lambda: "HTTP API on" in logs["server"].read_text())
        environ["HOLDFAST_URL"] = f"http://{SERVER}:8787"
        app = f"{tmp_path / 'app.py'}:app"
        working = cable.start(cable.worker, "work", app, environ=environ, log=logs["worker"])
        poll(lambda: run_coroutine(completed(holdfast_url, 1)))
        cable.cut()
        with pytest.raises(subprocess.TimeoutExpired):
            working.wait(PARTITION_SECONDS)
        cable.mend()
        begun = time.monotonic()
        poll(lambda: run_coroutine(completed(holdfast_url, 2)))
        assert time.monotonic() - begun < PARTITION_SECONDS / 2
    finally:
        for process in (working, serving):
            if process is not None:
                process.terminate()
                process.wait(30)


async def completed(url: str, number: int) -> bool:
    """Whether the task of this number is over; it is enqueued when its action is known and it is not there yet."""
    connection = await asyncpg.connect(url)
    try:
        if not await connection.fetchval("select exists (select from holdfast.action where name = 'cut.note')"):
            return False
        if await connection.fetchval("select count(*) from holdfast.body") < number:
            await connection.fetchval("select holdfast.enqueue('cut.note', '{\"n\": 1}')")
        return await connection.fetchval("select count(*) from holdfast.attempt where state = 'c'") >= number
    finally:
        await connection.close()
