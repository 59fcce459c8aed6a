"""Every launcher that needs nothing but this machine, on the same scenarios: real processes, attached and not."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.launchers import servers, shop_app
from tests.launchers.platform import Fixed, profile
from tests.launchers.servers import BROKEN, LOSE_ANSWER, Ecs, Kubernetes
from tests.waiting import eventually

from holdfast.launchers.contract import LaunchError, LaunchOrder, LaunchState
from holdfast.launchers.ecs import EcsLauncher
from holdfast.launchers.kubernetes import KubernetesLauncher
from holdfast.launchers.loop import Launching
from holdfast.launchers.process import ProcessLauncher
from holdfast.settings.settings import Settings

APP = f"{Path(shop_app.__file__)}:app"
ATTACH = [sys.executable, "-m", "holdfast", "attach"]
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
KINDS = ["process", "ecs", "kubernetes"]


@dataclass
class Given:
    """A launcher, and hands on what it started."""

    launcher: Any
    machine: Any = None

    def faults(self, *faults):
        if self.machine is None:
            pytest.skip("a process of this machine answers itself")
        self.machine.faults = list(faults)

    def children(self):
        return (self.launcher._children if self.machine is None else self.machine.children).values()


@contextmanager
def a_launcher(kind, url, command):
    environment = {"HOLDFAST_URL": url, "HOLDFAST_APP": APP}
    if kind == "process":
        given = Given(ProcessLauncher("here", {"command": command, "stop_seconds": 2}, url=url, app_ref=APP, packs=()))
        yield given
        for child in given.children():
            child.kill()
            child.wait()
    elif kind == "ecs":
        with servers.serving(Ecs, environment, definition=command, arns={}, environments={}) as machine:
            own = {"region": "eu-1", "endpoint_url": machine.url, "task_definition": "shop:1", "container": "worker"}
            yield Given(EcsLauncher("here", own), machine)
    else:
        with servers.serving(Kubernetes, environment) as machine:
            own = {"url": machine.url, "token": "secret", "image": "shop:1", "command": command}
            yield Given(KubernetesLauncher("here", own), machine)


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    """What the launchers and the workers they start find: credentials, and beats that hear of a cancel soon."""
    monkeypatch.setenv("HOLDFAST_HEARTBEAT_SECONDS", "0.3")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def given(kind, holdfast_url):
    with a_launcher(kind, holdfast_url, ATTACH) as found:
        yield found


@pytest.fixture
def holdfast_settings():
    base = Settings()
    return replace(base, launch=replace(base.launch, poll_seconds=0.1, describe_seconds=0.2))


@pytest.fixture
def launching(engine, given):
    return Launching(engine, Fixed({"here": profile(given.launcher, name="here")}))


@pytest.fixture
async def loop(launching):
    running = asyncio.create_task(launching.run())
    yield
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def an_order(name="hf-1-1", attempt=1, token="t"):
    about = {"action": "launched.add", "queue": "launched", "tenant": "default"}
    return LaunchOrder(name=name, token=token, task_id="1", attempt=attempt, **about)


@pytest.mark.representative(one_in=3)
async def test_a_launched_worker_runs_its_task_and_ends(client, loop, given):
    task = await client.enqueue(shop_app.add, a=2, b=3)
    result = await task.result(timeout=30)
    assert result["sum"] == 5 and result["pid"] != os.getpid() and not result["has_token"]
    [child] = given.children() or [None]
    if child is not None:
        assert await asyncio.to_thread(child.wait, 10) == 0


@pytest.mark.representative(one_in=3)
async def test_process_isolation_works_in_a_launched_worker(client, loop, given, kind):
    if kind != "process":
        pytest.skip("once is enough")
    assert await (await client.enqueue(shop_app.apart, n=7)).result(timeout=30) == 49


@pytest.mark.representative(one_in=3)
async def test_an_answer_lost_after_the_launch_starts_one_worker(client, loop, given):
    given.faults(LOSE_ANSWER)
    task = await client.enqueue(shop_app.add, a=1, b=1)
    assert (await task.result(timeout=30))["sum"] == 2
    assert len(given.children()) == 1 < given.machine.launches


async def test_a_launch_that_stopped_before_its_answer_came_is_found_again(kind):
    with a_launcher(kind, "", SLEEP) as given:
        given.faults(LOSE_ANSWER, LOSE_ANSWER, LOSE_ANSWER)
        with pytest.raises(LaunchError):
            await given.launcher.launch(an_order())
        [child] = given.children()
        os.killpg(child.pid, signal.SIGKILL)
        await asyncio.to_thread(child.wait, 5)
        handle = await given.launcher.launch(an_order(token="another"))
        assert len(given.children()) == 1
        assert (await given.launcher.describe([handle]))[handle].state is LaunchState.STOPPED


async def test_a_server_in_trouble_is_asked_again_under_the_same_name(given):
    given.faults(BROKEN, BROKEN)
    assert await given.launcher.launch(an_order())
    assert len(given.children()) == 1


async def test_a_server_that_stays_in_trouble_is_a_failed_launch(given):
    given.faults(*[BROKEN] * 3)
    with pytest.raises(LaunchError, match=r"500|ServerException"):
        await given.launcher.launch(an_order())
    assert not given.children()


@pytest.mark.representative(one_in=3)
async def test_the_same_name_is_launched_once(kind, holdfast_url):
    with a_launcher(kind, holdfast_url, SLEEP) as given:
        handles = {await given.launcher.launch(an_order()) for _ in range(3)}
        assert len(handles) == 1 == len(given.children())


@pytest.mark.representative(one_in=3)
async def test_what_runs_is_seen_running_and_what_was_killed_stopped(kind, holdfast_url):
    with a_launcher(kind, holdfast_url, SLEEP) as given:
        handle = await given.launcher.launch(an_order())
        assert (await given.launcher.describe([handle]))[handle].state is LaunchState.RUNNING
        [child] = given.children()
        os.killpg(child.pid, signal.SIGKILL)
        await asyncio.to_thread(child.wait, 5)
        seen = (await given.launcher.describe([handle]))[handle]
        assert seen.state is LaunchState.STOPPED and seen.detail


@pytest.mark.representative(one_in=3)
async def test_stopping_ends_the_process_and_may_be_repeated(kind, holdfast_url):
    with a_launcher(kind, holdfast_url, SLEEP) as given:
        handle = await given.launcher.launch(an_order())
        [child] = given.children()
        await given.launcher.stop("hf-1-1", handle)
        assert await asyncio.to_thread(child.wait, 5) != 0
        await given.launcher.stop("hf-1-1", handle)
        await given.launcher.stop("hf-9-9", None)


async def test_what_was_launched_can_be_stopped_by_its_name_alone(kind, holdfast_url):
    with a_launcher(kind, holdfast_url, SLEEP) as given:
        await given.launcher.launch(an_order())
        [child] = given.children()
        await given.launcher.stop("hf-1-1", None)
        assert await asyncio.to_thread(child.wait, 5) != 0


@pytest.mark.representative(one_in=3)
async def test_a_worker_killed_before_it_attached_is_lost_early(client, engine, kind, holdfast_url, harness):
    with a_launcher(kind, holdfast_url, SLEEP) as given:
        launching = Launching(engine, Fixed({"here": profile(given.launcher, name="here")}))
        task = await client.enqueue(shop_app.hang, where="")
        await launching.launch_once()
        [child] = list(given.children())
        os.killpg(child.pid, signal.SIGKILL)
        await asyncio.to_thread(child.wait, 5)
        await engine.database.fetch("update holdfast.launch set looked_at = looked_at - interval '1 minute'")
        await launching.supervise_once()
        [attempt] = await harness.attempts(task.task_id)
        assert "stopped without attaching" in attempt.message and attempt.state == "lost"


@pytest.mark.representative(one_in=3)
async def test_a_worker_killed_after_it_attached_is_lost_by_its_lease(
    client, launching, given, engine, harness, clock, tmp_path
):
    where = tmp_path / "pid"
    task = await client.enqueue(shop_app.hang, where=str(where))
    await launching.launch_once()
    await eventually(lambda: where.exists() and where.read_text())
    os.kill(int(where.read_text()), signal.SIGKILL)
    await clock.advance(seconds=11)
    await harness.reap_once()
    [attempt] = await harness.attempts(task.task_id)
    assert attempt.state == "lost" and "without a heartbeat" in attempt.message
    await launching.supervise_once()


@pytest.mark.representative(one_in=3)
async def test_a_canceled_task_ends_its_process(client, loop, given, tmp_path):
    where = tmp_path / "pid"
    task = await client.enqueue(shop_app.hang, where=str(where))
    await eventually(lambda: where.exists() and where.read_text())
    [child] = list(given.children())
    await task.cancel()
    await asyncio.to_thread(child.wait, 20)
    await eventually(lambda: not Path(f"/proc/{where.read_text()}").exists())
