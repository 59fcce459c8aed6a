"""Launchers from the outside: a server that launches, `holdfast attach`, `launch list`, workers behind HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from tests.launchers import shop_app

from holdfast.client.client import Client
from holdfast.core.tasks.outcome import Completed
from holdfast.errors import LeaseLost
from holdfast.launchers.contract import LaunchOrder
from holdfast.server.worker_api.remote_workers import CompletedReport, RemoteWorkers
from holdfast.settings.settings import Settings
from holdfast.worker.runtime.worker import Worker

APP = f"{Path(shop_app.__file__)}:app"


def holdfast(*words, url, **environment):
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *words],
        env={**os.environ, "HOLDFAST_URL": url, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def server(holdfast_url, tmp_path):
    """`holdfast server` with one launcher of its own."""
    config = tmp_path / "holdfast.toml"
    config.write_text(f'[launchers.here]\nkind = "process"\napp = "{APP}"\n')
    running = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "server", "--no-http"],
        env={**os.environ, "HOLDFAST_URL": holdfast_url, "HOLDFAST_CONFIG": str(config)},
        start_new_session=True,
    )
    yield running
    running.send_signal(signal.SIGTERM)
    assert running.wait(20) == 0


@pytest.mark.slow("it starts launched workers; test_attaching_to_what_is_over_ends_with_a_conflict is fast")
async def test_a_server_launches_and_other_workers_leave_it_alone(server, engine, holdfast_url):
    """The worker of the same app declares the action, and does not take its tasks."""
    settings = replace(Settings(), url=holdfast_url)
    worker = Worker(engine, {"launched.add": shop_app.add})
    async with worker.signed_on(), Client(settings, shop_app.app.actions, {}) as client:
        assert worker._claimed_actions() == []
        task = await client.enqueue(shop_app.add, a=20, b=3)
        assert (await task.result(timeout=60))["sum"] == 23


@pytest.mark.slow("it starts launched workers; test_attaching_to_what_is_over_ends_with_a_conflict is fast")
async def test_launches_are_listed(launching, queue_up, platform, holdfast_url):
    [task] = await queue_up()
    await launching.launch_once()
    [row] = json.loads(holdfast("launch", "list", "-o", "json", url=holdfast_url).stdout)
    assert (row["task_id"], row["attempt"], row["launcher"], row["slot"]) == (task, 1, "test", 1)
    assert (row["state"], row["handle"]) == ("launched", platform.asked[0].name)


async def test_attaching_to_what_is_over_ends_with_a_conflict(launching, queue_up, platform, harness, holdfast_url):
    [task] = await queue_up()
    await launching.launch_once()
    await harness.cancel(task)
    done = holdfast("attach", APP, url=holdfast_url, **platform.asked[0].environment)
    assert done.returncode == 5 and "has no valid reservation" in done.stderr


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize("missing", ["HOLDFAST_LAUNCH_TOKEN", "HOLDFAST_TASK_ID"])
def test_attach_says_that_it_is_for_launchers(missing, holdfast_url):
    told = {"HOLDFAST_LAUNCH_TOKEN": "t", "HOLDFAST_TASK_ID": "1", "HOLDFAST_ATTEMPT": "1"}
    done = holdfast("attach", APP, url=holdfast_url, **{**told, missing: ""})
    assert done.returncode == 2 and f"{missing} is not set" in done.stderr


async def test_a_worker_behind_http_attaches_once(launching, queue_up, platform, engine, harness):
    await queue_up()
    await launching.launch_once()
    [order] = platform.asked
    workers = RemoteWorkers(engine)
    about = {"name": "far", "actions": [], "queues": [], "slots": 1, "version": "", "labels": "{}"}
    worker_id = await workers.register(**about)
    [handed] = await workers.attach(worker_id, int(order.task_id), order.attempt, order.token)
    assert (handed.task_id, handed.attempt, handed.action) == (order.task_id, 1, "shop.charge")
    other_id = await workers.register(**about | {"name": "farther"})
    with pytest.raises(LeaseLost):
        await workers.attach(other_id, int(order.task_id), order.attempt, order.token)
    [again] = await workers.attach(worker_id, int(order.task_id), order.attempt, order.token)
    assert again.lease_token == handed.lease_token
    outcome = Completed(b"1")
    await workers.complete(
        CompletedReport(task_id=int(order.task_id), attempt=1, lease_token=UUID(handed.lease_token), outcome=outcome)
    )


def test_a_launched_worker_is_told_its_tenant_and_the_token_shows_nowhere_else():
    order = LaunchOrder(
        name="n", token="s3cret", task_id="7", attempt=1, action="shop.charge", queue="default", tenant="acme"
    )
    assert order.environment["HOLDFAST_TENANT"] == "acme" and order.environment["HOLDFAST_LAUNCH_TOKEN"] == "s3cret"
    assert "s3cret" not in repr(order)
