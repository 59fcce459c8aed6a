"""Attempts in processes of their own: what they do to themselves stays with them."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import uuid
from contextvars import ContextVar
from dataclasses import dataclass

import pytest
import pytest_asyncio

import holdfast as hf
from holdfast.core.tasks.failure import INPUT_CODE, TIMEOUT_CODE
from holdfast.errors import Invalid, TaskFailed
from holdfast.worker.isolation.child import MEMORY_CODE, _Process
from holdfast.worker.isolation.frames import Start
from holdfast.worker.isolation.pool import Isolated
from holdfast.worker.runtime.worker import Worker
from holdfast.worker.supervisor.start_orders import Orders

pytestmark = pytest.mark.crash


@pytest_asyncio.fixture
async def worker(running_worker, settings, app_ref, tmp_path, monkeypatch):
    """A worker in this process, its isolated attempts in others."""
    monkeypatch.setenv("FLEET_JOURNAL", str(tmp_path / "journal"))
    orders = Orders(app_ref=app_ref, url=settings.url, settings=settings, slots=5, queues=None, name="")
    async with running_worker(isolator=Isolated(orders)) as worker:
        yield worker


async def test_an_isolated_attempt_runs_elsewhere_and_its_process_is_used_again(worker, client):
    first, second = [await (await client.enqueue("fleet.process_id")).result(20) for _ in range(2)]
    assert first == second != os.getpid()


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; test_what_an_attempt_says_crosses_the_border is fast"
)
async def test_a_crash_costs_the_crashing_task_alone(worker, client, journal):
    crashing = await client.enqueue("fleet.crash")
    others = [await client.enqueue("fleet.add", a=number, b=0) for number in range(10)]
    assert [await task.result(20) for task in others] == list(range(10))
    with pytest.raises(TaskFailed, match="killed by SIGSEGV"):
        await crashing.result(20)
    assert [entry.attempt for entry in journal.entries("start")] == [1, 2], "one loss is allowed"
    assert isinstance(await (await client.enqueue("fleet.process_id")).result(20), int)


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; test_what_an_attempt_says_crosses_the_border is fast"
)
async def test_memory_beyond_the_limit_fails_the_attempt(worker, client):
    assert await (await client.enqueue("fleet.eat", megabytes=16)).result(20) == 16 * 1024 * 1024
    with pytest.raises(TaskFailed) as failed:
        await (await client.enqueue("fleet.eat", megabytes=128)).result(20)
    assert failed.value.fields["cause"] == MEMORY_CODE
    assert await (await client.enqueue("fleet.eat", megabytes=16)).result(20) == 16 * 1024 * 1024


async def test_what_an_attempt_says_crosses_the_border(worker, client):
    task = await client.enqueue("fleet.speak", words=["one", "two"])
    assert await task.result(20) == 2
    notes = await client.engine.database.fetch(
        "select kind, detail->>'message' as said, detail->>'done' as done from holdfast.note order by seq"
    )
    assert [note["said"] for note in notes if note["kind"] == "log"] == ["one", "two"]
    # A beat in between may have kept an earlier progress as well.
    assert notes[-1]["kind"] == "progress" and float(notes[-1]["done"]) == 2


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; test_what_an_attempt_says_crosses_the_border is fast"
)
async def test_a_late_attempt_is_asked_then_told_then_killed_with_all_it_started(
    worker, client, journal, tmp_path, eventually, is_gone
):
    task = await client.enqueue("fleet.never_listen", folder=str(tmp_path))
    with pytest.raises(TaskFailed) as failed:
        await task.result(20)
    assert failed.value.fields["cause"] == TIMEOUT_CODE
    started, terminated = (await journal.first("start")), (await journal.first("terminated"))
    assert started.pid == terminated.pid and is_gone(started.pid)
    await eventually(lambda: is_gone(int((tmp_path / "grandchild").read_text())))


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; test_what_an_attempt_says_crosses_the_border is fast"
)
async def test_a_canceled_attempt_may_end_by_itself(worker, client, journal):
    task = await client.enqueue("fleet.until_told")
    await journal.first("start")
    assert await task.cancel("enough") == "canceling"
    assert await task.wait(20) == "canceled"
    assert await journal.first("stop")


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; test_what_an_attempt_says_crosses_the_border is fast"
)
async def test_the_processes_of_a_worker_end_with_it(fleet, client, journal, is_gone, eventually):
    one = fleet()
    task = await client.enqueue("fleet.until_told")
    first = await journal.first("start")
    worker_process = await one.child()
    one.process.send_signal(signal.SIGSTOP)
    os.kill(worker_process, signal.SIGKILL)
    await eventually(lambda: is_gone(first.pid))
    one.process.send_signal(signal.SIGCONT)
    second = await journal.first("start", attempt=2)
    await task.cancel("enough")
    assert second.pid != first.pid and await task.wait(20) == "canceled"


def test_a_worker_that_cannot_isolate_refuses_such_actions(engine, app):
    with pytest.raises(Invalid, match="isolation_needs_app"):
        Worker(engine, app.actions)


async def test_a_process_that_cannot_be_started_costs_a_loss_each_time(worker, client, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(TaskFailed, match="cannot be started") as failed:
        await (await client.enqueue("fleet.crash")).result(20)
    assert failed.value.fields["cause"] == "launch_failed"


@dataclass
class Touchy:
    number: int

    def __post_init__(self) -> None:
        assert self.number > 0


number_seen: ContextVar[int] = ContextVar("number_seen", default=0)


def test_inside_the_process_an_attempt_neither_ends_it_nor_leaves_anything_to_the_next():
    app = hf.App("inner", settings=hf.Settings(url="postgresql://nowhere.invalid/none"))

    @app.action(isolation="process")
    def leave(touchy: Touchy) -> int:
        before = number_seen.get()
        number_seen.set(touchy.number)
        return before

    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = _Process(app, theirs)
        ended = [process._attempt(a_start("inner.leave", {"touchy": {"number": number}})) for number in (1, 2, -1)]
    assert [one.output for one in ended] == [b"0", b"0", None]
    assert ended[2].failure.code == INPUT_CODE and "AssertionError" in ended[2].failure.message


def a_start(action: str, given: dict[str, object]) -> Start:
    return Start(
        action=action,
        input=json.dumps(given).encode(),
        task_id="1",
        attempt=1,
        lease_token=str(uuid.uuid4()),
        tenant="default",
        queue="default",
        tags=(),
        run_id=None,
        memory_bytes_max=None,
        output_bytes_max=1_000,
    )
