"""The Ray launcher on a real cluster of this machine: two nodes, and one of them is killed. `make ray` runs it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.launchers import shop_app
from tests.launchers.platform import Fixed, profile
from tests.waiting import eventually

from holdfast.engine.maintenance.loops import Loops
from holdfast.launchers.contract import LaunchOrder, LaunchState
from holdfast.launchers.loop import Launching
from holdfast.settings.settings import Settings

pytestmark = [pytest.mark.ray, pytest.mark.crash]
NO_RAY = "Ray is not installed: `pip install 'holdfast[ray]'`, or `make ray`"
RAY = Path(sys.executable).parent / "ray"
APP = f"{Path(shop_app.__file__)}:app"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        return one.getsockname()[1]


def started(*words: str, log: Path) -> subprocess.Popen:
    """A node in the foreground, in a session of its own."""
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "180"}
    with log.open("wb") as out:
        return subprocess.Popen(
            [RAY, "start", "--block", *words],
            env={**os.environ, **quiet},
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def until_open(address: str, head: subprocess.Popen, log: Path) -> None:
    """Until the head listens; it says nothing about it that could be relied on."""
    for _ in range(300):
        assert head.poll() is None, log.read_text()
        with socket.socket() as one:
            one.settimeout(0.5)
            if one.connect_ex((address.rpartition(":")[0], int(address.rpartition(":")[2]))) == 0:
                return
        time.sleep(0.2)
    raise AssertionError(log.read_text())


def until_alive(ray: Any, count: int) -> None:
    for _ in range(600):
        if len([one for one in ray.nodes() if one["Alive"]]) == count:
            return
        time.sleep(0.2)
    raise AssertionError(ray.nodes())


def session_members(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getsid(int(entry.name)) == session:
                found.append(int(entry.name))
        except ProcessLookupError:
            continue
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A head that runs nothing, and two nodes with room for one worker each."""
    ray = pytest.importorskip("ray", reason=NO_RAY)
    folder = tmp_path_factory.mktemp("ray")
    port = free_port()
    head = started(
        "--head",
        f"--port={port}",
        "--include-dashboard=false",
        "--num-cpus=0",
        "--object-store-memory=80000000",
        log=folder / "head.log",
    )
    nodes: list[subprocess.Popen] = []
    try:
        # Ray does not let a driver use loopback: it puts the machine's own address in its place.
        address = f"{ray.util.get_node_ip_address()}:{port}"
        until_open(address, head, folder / "head.log")
        room = ("--num-cpus=1", "--object-store-memory=80000000")
        ray.init(address=address, namespace="holdfast", log_to_driver=False, configure_logging=False)
        for number in (1, 2):
            # One after the other: two that start at once on one machine wait for each other's files.
            nodes.append(started(f"--address={address}", *room, log=folder / f"{number}.log"))
            until_alive(ray, number + 1)
        yield address, nodes
        ray.shutdown()
    finally:
        for one in (*nodes, head):
            for pid in session_members(one.pid):
                os.kill(pid, signal.SIGKILL)
            one.wait()


@pytest.fixture
def launcher(cluster, holdfast_url):
    from holdfast.launchers.ray import RayLauncher

    environment = {"HOLDFAST_URL": holdfast_url, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "holdfast", "attach"]
    return RayLauncher("here", {"address": cluster[0], "command": command, "app": APP, "env": environment})


@pytest.fixture
def holdfast_settings():
    base = Settings()
    return replace(base, launch=replace(base.launch, poll_seconds=0.2, describe_seconds=1.0))


@pytest.fixture
async def loops(engine, launcher):
    launching = Launching(engine, Fixed({"here": profile(launcher, name="here")}))
    running = [asyncio.create_task(launching.run()), asyncio.create_task(Loops(engine).run())]
    yield
    for one in running:
        one.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def test_a_worker_on_the_cluster_runs_its_task(client, loops):
    assert (await (await client.enqueue(shop_app.add, a=2, b=3)).result(timeout=90))["sum"] == 5


async def test_a_name_is_one_actor_that_can_be_seen_and_stopped(launcher):
    about = {"action": "launched.add", "queue": "launched", "tenant": "default"}
    launcher._command = ["sleep", "600"]
    order = LaunchOrder(name="hf-9-1", token="t", task_id="9", attempt=1, **about)
    handles = {await launcher.launch(order) for _ in range(3)}
    assert handles == {"hf-9-1"}
    assert (await launcher.describe(["hf-9-1"]))["hf-9-1"].state is LaunchState.RUNNING
    await launcher.stop("hf-9-1", None)
    async with asyncio.timeout(30):
        while (await launcher.describe(["hf-9-1"]))["hf-9-1"].state is not LaunchState.STOPPED:  # noqa: ASYNC110 - the same
            await asyncio.sleep(0.1)
    await launcher.stop("hf-9-1", "hf-9-1")


async def test_the_work_of_a_killed_node_goes_on_at_the_other(client, loops, cluster, tmp_path, harness):
    where = tmp_path / "pid"
    task = await client.enqueue(shop_app.survive, where=str(where))
    await eventually(lambda: where.exists() and where.read_text(), seconds_max=60.0)
    worker = int(where.read_text())
    [node] = [one for one in cluster[1] if worker_is_of(one.pid, worker)]
    kill_raylet(node.pid)
    assert await task.result(timeout=120) == 2
    first, second = await harness.attempts(task.task_id)
    assert (first.state, second.state) == ("lost", "completed")
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def kill_raylet(session: int) -> None:
    for pid in session_members(session):
        if "raylet" in Path(f"/proc/{pid}/cmdline").read_text().partition("\0")[0]:
            os.kill(pid, signal.SIGKILL)


def worker_is_of(session: int, pid: int) -> bool:
    """Whether a process descends from a node: Ray gives its workers sessions of their own, so by parents."""
    while pid > 1:
        if os.getsid(pid) == session:
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False
