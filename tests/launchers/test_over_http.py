"""Launched workers that have a server and no database: `holdfast attach` with the URL of one and a worker's token."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.core.flows import a_node, an_edge
from tests.launchers import servers, shop_app
from tests.launchers.platform import Fixed, profile
from tests.launchers.servers import Kubernetes
from tests.waiting import eventually
from tests.worker.servers import LossyWay

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.tasks.outcome import Completed
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.identity.tokens import create_token
from holdfast.errors import LeaseLost, TaskFailed
from holdfast.launchers.kubernetes import KubernetesLauncher
from holdfast.launchers.loop import Launching
from holdfast.server.app import serving
from holdfast.settings.settings import Settings
from holdfast.testing.runs import Runs
from holdfast.worker.runtime.launched_worker import SingleAttemptWorker, transport_to
from holdfast.worker.transport.http import HttpTransport

APP = f"{Path(shop_app.__file__)}:app"
ATTACH = [sys.executable, "-m", "holdfast", "attach"]


@pytest.fixture
def holdfast_settings():
    base = Settings(port=0)
    launch = replace(base.launch, poll_seconds=0.1, describe_seconds=0.2)
    return replace(base, launch=launch, worker=replace(base.worker, heartbeat_seconds=0.3))


@pytest.fixture
async def server_url(engine):
    async with serving(engine) as url:
        yield url


@pytest.fixture
async def token(engine):
    """Opens the worker contract, for the queue of the launched actions and no other."""
    made = await create_token(engine.database, 1, name="launched", role="worker", queues=["launched"], actor="anna")
    return made.token


@pytest.fixture
def environment(server_url, token):
    """All that a launched process is given: not a word about the database."""
    return {"HOLDFAST_URL": server_url, "HOLDFAST_TOKEN": token, "HOLDFAST_APP": APP}


@pytest.fixture
async def machine(engine, environment):
    """A platform whose processes attach over HTTP, and the loop that launches them."""
    with servers.serving(Kubernetes, environment) as machine:
        own = {"url": machine.url, "token": "secret", "image": "shop:1", "command": ATTACH}
        launcher = KubernetesLauncher("here", own)
        running = asyncio.create_task(Launching(engine, Fixed({"here": profile(launcher, name="here")})).run())
        yield machine
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
def attached(server_url, token, holdfast_settings):
    """A launched worker in this process, by any way to the server."""

    def attached(url=server_url, actions=None):
        actions = shop_app.app.actions if actions is None else actions
        return SingleAttemptWorker(
            HttpTransport(url, replace(holdfast_settings, token=token, url=url)), actions, isolator=None
        )

    return attached


async def test_a_launched_worker_needs_a_server_and_no_database(client, machine):
    task = await client.enqueue(shop_app.add, a=2, b=3)
    result = await task.result(timeout=30)
    assert result["sum"] == 5 and result["pid"] != os.getpid() and not result["has_token"]
    [child] = machine.children.values()
    assert await asyncio.to_thread(child.wait, 10) == 0


@pytest.mark.slow("it starts launched workers; test_a_launched_worker_needs_a_server_and_no_database is fast")
async def test_its_heartbeats_and_processes_of_its_own_go_over_http_too(client, machine):
    assert await (await client.enqueue(shop_app.apart, n=7)).result(timeout=30) == 49


@pytest.mark.slow("it starts launched workers; test_a_launched_worker_needs_a_server_and_no_database is fast")
async def test_a_canceled_task_ends_its_process(client, machine, tmp_path):
    where = tmp_path / "pid"
    task = await client.enqueue(shop_app.hang, where=str(where))
    await eventually(lambda: where.exists() and where.read_text())
    await task.cancel()
    [child] = machine.children.values()
    await asyncio.to_thread(child.wait, 20)
    assert await task.wait(timeout=20) == "canceled"


@pytest.fixture
async def order(client, platform, engine):
    """What a platform was told to launch, for a task that adds."""
    launching = Launching(engine, Fixed({"here": profile(platform, name="here")}))
    await client.enqueue(shop_app.add, a=1, b=1)
    await launching.launch_once()
    return platform.asked[0]


def apart(actions):
    """Without what would need a process of its own."""
    return {name: action for name, action in actions.items() if not name.endswith("apart")}


async def test_an_answer_lost_after_the_swap_is_found_again(order, attached, server_url, harness):
    async with LossyWay(server_url, lambda path: path == "/internal/attach") as lossy:
        worker = attached(lossy.url, apart(shop_app.app.actions))
        assert await worker.run_attached(int(order.task_id), order.attempt, order.token)
    assert lossy.lost == ["/internal/attach"]
    assert [one.state for one in await harness.attempts(order.task_id)] == ["completed"]


async def test_a_server_that_restarts_while_a_launched_worker_starts_is_waited_for(
    order, server_url, token, holdfast_settings, harness
):
    """Its first questions, for the terms and to be known, go unanswered once each."""
    asked = set()

    def is_first(path):
        return path in ("/internal/terms", "/internal/workers") and not (path in asked or asked.add(path))

    settings = replace(holdfast_settings, token=token)
    async with (
        LossyWay(server_url, is_first) as lossy,
        transport_to(lossy.url, replace(settings, url=lossy.url)) as line,
    ):
        worker = SingleAttemptWorker(line, apart(shop_app.app.actions))
        assert await worker.run_attached(int(order.task_id), order.attempt, order.token)
    assert lossy.lost == ["/internal/terms", "/internal/workers"]
    assert [one.state for one in await harness.attempts(order.task_id)] == ["completed"]


async def test_a_token_is_good_once(order, attached):
    actions = apart(shop_app.app.actions)
    assert await attached(actions=actions).run_attached(int(order.task_id), order.attempt, order.token)
    with pytest.raises(LeaseLost, match="has no valid reservation"):
        await attached(actions=actions).run_attached(int(order.task_id), order.attempt, order.token)


async def test_a_launched_worker_runs_its_task_through_the_apps_executor(order, attached, client):
    class Around:
        async def execute(self, attempt):
            return ["around", (await attempt.call())["sum"]]

    actions = {name: replace(action, executor=Around()) for name, action in apart(shop_app.app.actions).items()}
    assert await attached(actions=actions).run_attached(int(order.task_id), order.attempt, order.token)
    assert await client.result(order.task_id, timeout=10) == ["around", 2]


async def test_a_launched_worker_without_the_action_says_so(order, attached, client):
    assert await attached(actions={}).run_attached(int(order.task_id), order.attempt, order.token)
    with pytest.raises(TaskFailed, match=r"no action launched\.add"):
        await client.result(order.task_id, timeout=10)


async def test_an_attempt_that_cannot_have_its_input_is_over_before_it_runs(
    harness, engine, platform, server_url, holdfast_settings
):
    """Its node binds what the one before did not give: the server settles that, and there is nothing to run."""
    runs, action = Runs(harness), "launched.add"
    await engine.catalog.declare(1, action, "default", RetryPolicy(), "", launcher="here")
    nodes = (a_node("first"), a_node("second", action=action))
    await runs.start(FlowDefinition(name="shop.two", nodes=nodes, edges=(an_edge("first>second", "rows>a"),)))
    await harness.settle(await harness.claim_one(), Completed(b"{}"))
    await Launching(engine, Fixed({"here": profile(platform, name="here")})).launch_once()
    [order] = platform.asked
    made = await create_token(engine.database, 1, name="any", role="worker", actor="anna")
    line = HttpTransport(server_url, replace(holdfast_settings, token=made.token, url=server_url))
    worker = SingleAttemptWorker(line, apart(shop_app.app.actions))
    assert await worker.run_attached(int(order.task_id), order.attempt, order.token)
    assert [one.state for one in await harness.attempts(order.task_id)] == ["failed"]


async def test_a_launched_worker_declares_nothing_about_other_queues(order, attached, engine):
    """Its token is for one queue; its app has actions of others, which it does not take."""
    import holdfast as hf

    app = hf.App("launched")
    actions = {**apart(shop_app.app.actions)}
    actions |= {one.name: one for one in (app.action(queue="elsewhere", name="launched.other")(_nothing),)}
    assert await attached(actions=actions).run_attached(int(order.task_id), order.attempt, order.token)
    assert await engine.catalog.declared(1, "launched.other") is None


async def _nothing() -> None:
    """Never runs."""


@pytest.mark.slow("it starts launched workers; test_a_launched_worker_needs_a_server_and_no_database is fast")
async def test_the_command_says_whose_the_attempt_is(order, environment, harness):
    await harness.cancel(order.task_id)
    done = await asyncio.to_thread(
        subprocess.run,
        ATTACH,
        env={**os.environ, **environment, **order.environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 5 and "has no valid reservation" in done.stderr
