"""The workers in Node and shell that the docs show, against a real server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import sys
from pathlib import Path

import pytest

from holdfast.core.tasks.states import TaskState
from holdfast.errors import HoldfastError, TooMany, Unavailable
from holdfast.server.app import serving
from holdfast.server.worker_api.remote_workers import RemoteWorkers
from holdfast.settings.settings import Settings, WorkerSettings
from holdfast.testing.factories import a_task

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "remote"
needs_node = pytest.mark.skipif(
    shutil.which("node") is None, reason="Node is not installed: `apt-get install nodejs` (18 or newer)"
)
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed: `apt-get install curl`")


@pytest.fixture
def holdfast_settings():
    return Settings(env="local", port=0, worker=WorkerSettings(lease_seconds=5.0, heartbeat_seconds=1.0))


@pytest.fixture
async def start(call):
    """Start a worker program; what is left of it at the end is killed."""
    running = []
    # The Python that runs this before any launcher of others, which takes longer to find one than the work takes.
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    async def begin(*command, url=None):
        process = await asyncio.create_subprocess_exec(
            *command, url or call.url, stdout=asyncio.subprocess.PIPE, start_new_session=True, env=env
        )
        running.append(process)
        line = await asyncio.wait_for(process.stdout.readline(), 20)
        assert line.startswith(b"registered")
        return process

    yield begin
    for process in running:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def output_of(engine, task):
    return engine.database.fetchval(
        "select output from holdfast.attempt where task_id = $1 and state = 'c'", int(task.task_id)
    )


async def in_state(harness, task, state):
    return (await harness.task(task.task_id)).state is state


@pytest.mark.slow(
    "it starts a worker program and waits for its lease or stop; "
    "test_the_node_worker_keeps_its_lease_and_hears_of_a_cancel is fast"
)
@needs_node
async def test_the_node_worker_runs_fails_and_leaves_in_good_order(start, harness, engine, eventually):
    node = await start("node", str(EXAMPLES / "worker.mjs"))
    sums = [await harness.enqueue(a_task(action="demo.add", input={"a": n, "b": 1})) for n in range(30)]
    refused = await harness.enqueue(a_task(action="demo.refuse", max_retries=0))
    for n, task in enumerate(sums):
        await eventually(lambda task=task: output_of(engine, task))
        assert await output_of(engine, task) == str(n + 1).encode()
    await eventually(lambda: in_state(harness, refused, TaskState.FAILED))
    assert await engine.database.fetchval("select code from holdfast.failure") == "ORDER_UNKNOWN"
    slow = await harness.enqueue(a_task(action="demo.sleep", input={"seconds": 60}, max_losses=3))
    await eventually(lambda: in_state(harness, slow, TaskState.RUNNING))
    node.terminate()
    assert await asyncio.wait_for(node.wait(), 20) == 0
    # What was given to it while it left it never knew of: that is free for whoever looks.
    await harness.reap_once()
    assert not await in_state(harness, slow, TaskState.RUNNING)
    assert await engine.database.fetchval("select state from holdfast.worker") == "gone"


@needs_node
async def test_the_node_worker_keeps_its_lease_and_hears_of_a_cancel(start, harness, engine, clock, eventually):
    await start("node", str(EXAMPLES / "worker.mjs"))
    task = await harness.enqueue(a_task(action="demo.sleep", input={"seconds": 60}, max_losses=0))
    await eventually(lambda: in_state(harness, task, TaskState.RUNNING))
    renewed = "select lease_expires_at > holdfast.instant() + interval '4 seconds' from holdfast.live"
    for _ in range(3):
        # Nearly a lease at a time: without a beat in each it would be over at the second.
        await clock.advance(seconds=4)
        await eventually(lambda: engine.database.fetchval(renewed))
        await harness.reap_once()
    assert [one.state for one in await harness.attempts(task.task_id)] == ["running"]
    await harness.cancel(task.task_id)
    await eventually(lambda: in_state(harness, task, TaskState.CANCELED))


@pytest.mark.slow(
    "it starts a worker program and waits for its lease or stop; "
    "test_the_node_worker_keeps_its_lease_and_hears_of_a_cancel is fast"
)
@needs_node
async def test_the_node_worker_stops_its_work_in_time_while_a_beat_hangs(start, harness, monkeypatch):
    beats, over, real = [], asyncio.Event(), RemoteWorkers.beat

    async def beat(self, *arguments, **options):
        beats.append(arguments)
        if len(beats) > 1:
            await over.wait()
        return await real(self, *arguments, **options)

    monkeypatch.setattr(RemoteWorkers, "beat", beat)
    node = await start("node", str(EXAMPLES / "worker.mjs"))
    task = await harness.enqueue(a_task(action="demo.sleep", input={"seconds": 60}, max_losses=0))
    assert await asyncio.wait_for(node.stdout.readline(), 20) == f"stopped {task.task_id}\n".encode()
    over.set()


@pytest.fixture
def shaky(monkeypatch):
    """The first reports, and beats after the first, are refused with what passes; answers what is left of that."""
    left = {}

    def refuse(name, refusals):
        real, left[name] = getattr(RemoteWorkers, name), refusals

        async def answer(self, *arguments, **options):
            if left[name] and (refusal := left[name].pop()) is not None:
                raise refusal
            return await real(self, *arguments, **options)

        monkeypatch.setattr(RemoteWorkers, name, answer)

    refuse("complete", [TooMany("Too many."), HoldfastError("Something."), Unavailable("Away.")])
    refuse("heartbeat", [TooMany("Too many."), Unavailable("Away."), None])
    refuse("beat", [TooMany("Too many."), Unavailable("Away."), None])
    return left


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize(
    ("command", "name", "action", "given", "output", "beats"),
    [
        pytest.param(
            "node", "worker.mjs", "demo.sleep", {"seconds": 2}, b'{"slept":2}', "beat", marks=needs_node, id="node"
        ),
        pytest.param(
            "sh",
            "worker.sh",
            "demo.shout",
            {"text": "a", "seconds": 2},
            b'{"text":"A"}',
            "heartbeat",
            marks=needs_curl,
            id="shell",
        ),
    ],
)
async def test_a_drained_worker_finishes_and_no_refusal_that_passes_costs_its_result(
    start, harness, engine, eventually, shaky, command, name, action, given, output, beats
):
    worker = await start(command, str(EXAMPLES / name))
    task = await harness.enqueue(a_task(action=action, input=given, max_losses=0))
    await eventually(lambda: in_state(harness, task, TaskState.RUNNING))
    await engine.database.fetch("update holdfast.worker set state = 'draining'")
    # Drained, it finishes, reports, leaves and ends; and it never stopped its work.
    assert b"stopped" not in await asyncio.wait_for(worker.stdout.read(), 30)
    assert await worker.wait() == 0
    assert (await output_of(engine, task), shaky["complete"], shaky[beats]) == (output, [], [])
    assert await engine.database.fetchval("select state from holdfast.worker") == "gone"


NODE = pytest.param("node", "worker.mjs", "demo.sleep", marks=needs_node, id="node")
SHELL = pytest.param("sh", "worker.sh", "demo.shout", marks=needs_curl, id="shell")


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize(("command", "name", "action"), [NODE, SHELL])
async def test_a_worker_keeps_the_time_limit_of_its_tasks(start, harness, engine, eventually, command, name, action):
    await start(command, str(EXAMPLES / name))
    long = {"text": "late", "seconds": 3000 + random.random()}
    task = await harness.enqueue(a_task(action=action, input=long, max_retries=0, timeout_seconds=0.5))
    await eventually(lambda: in_state(harness, task, TaskState.FAILED), seconds_max=30.0)
    assert [one.state for one in await harness.attempts(task.task_id)] == ["timed_out"]
    assert await engine.database.fetchval("select code from holdfast.failure") == "DAG_TASK_EXECUTION_TIMEOUT"
    await eventually(lambda: asyncio.to_thread(is_awake, long["seconds"]))


@pytest.mark.slow(
    "it starts a worker program and waits for its lease or stop; "
    "test_the_node_worker_keeps_its_lease_and_hears_of_a_cancel is fast"
)
@needs_node
async def test_the_task_of_a_killed_node_worker_is_run_again(start, harness, engine, clock, eventually):
    first = await start("node", str(EXAMPLES / "worker.mjs"))
    task = await harness.enqueue(a_task(action="demo.sleep", input={"seconds": 1}, max_losses=3))
    await eventually(lambda: in_state(harness, task, TaskState.RUNNING))
    os.killpg(first.pid, signal.SIGKILL)
    await first.wait()
    await clock.advance(seconds=6)
    await harness.reap_once()
    await clock.advance("1m")
    await start("node", str(EXAMPLES / "worker.mjs"))
    await eventually(lambda: output_of(engine, task))
    assert [one.state for one in await harness.attempts(task.task_id)] == ["lost", "completed"]


@pytest.mark.slow(
    "it starts a worker program and waits for its lease or stop; "
    "test_the_node_worker_keeps_its_lease_and_hears_of_a_cancel is fast"
)
@needs_curl
async def test_the_shell_worker_shouts_and_reports_what_went_wrong(start, harness, engine, eventually):
    await start("sh", str(EXAMPLES / "worker.sh"))
    loud = await harness.enqueue(a_task(action="demo.shout", input={"text": 'it\'s "ok" ümlaut'}))
    wrong = await harness.enqueue(a_task(action="demo.shout", input={"words": 1}, max_retries=0))
    await eventually(lambda: output_of(engine, loud), seconds_max=60.0)
    assert b"IT'S" in await output_of(engine, loud)
    await eventually(lambda: in_state(harness, wrong, TaskState.FAILED), seconds_max=60.0)
    assert "KeyError" in await engine.database.fetchval("select message from holdfast.failure")


def is_sleeping(seconds):
    wanted = f"sleep\0{seconds}\0".encode()
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if command.read_bytes() == wanted:
                return True
    return False


def is_awake(seconds):
    """Whoever was killed may take a moment to be gone."""
    return not is_sleeping(seconds)


@pytest.mark.slow(
    "it starts a worker program and waits for its lease or stop; "
    "test_the_node_worker_keeps_its_lease_and_hears_of_a_cancel is fast"
)
@needs_curl
async def test_the_shell_worker_keeps_its_lease_for_as_long_as_it_works(start, harness, engine, eventually):
    await start("sh", str(EXAMPLES / "worker.sh"))
    long = {"text": "late", "seconds": 7}
    task = await harness.enqueue(a_task(action="demo.shout", input=long, max_losses=0))
    await eventually(lambda: output_of(engine, task), seconds_max=60.0)
    assert await output_of(engine, task) == b'{"text":"LATE"}'


@pytest.fixture
async def shouting(start, harness, eventually):
    """A shell worker, the task that it works on, and for how long."""
    shell = await start("sh", str(EXAMPLES / "worker.sh"))
    seconds = 3000 + random.random()
    task = await harness.enqueue(a_task(action="demo.shout", input={"text": "late", "seconds": seconds}))
    await eventually(lambda: asyncio.to_thread(is_sleeping, seconds), seconds_max=30.0)
    return shell, task, seconds


@needs_curl
async def test_nothing_of_a_killed_shell_worker_keeps_its_task(shouting, harness, clock, eventually):
    shell, task, seconds = shouting
    shell.kill()  # it alone: what beats beside the work lives on
    await shell.wait()
    await eventually(lambda: asyncio.to_thread(is_awake, seconds))
    await clock.advance(seconds=5)
    assert await harness.reap_once() == 1
    assert [one.state for one in await harness.attempts(task.task_id)] == ["lost"]


@pytest.mark.slow(
    "it starts a worker program and waits for its lease or stop; "
    "test_the_node_worker_keeps_its_lease_and_hears_of_a_cancel is fast"
)
@needs_curl
async def test_a_stopped_shell_worker_hands_back_what_runs_and_leaves(shouting, harness, engine):
    shell, task, seconds = shouting
    shell.terminate()
    assert await asyncio.wait_for(shell.wait(), 20) == 0
    assert not is_sleeping(seconds)
    (attempt,) = await harness.attempts(task.task_id)
    assert (attempt.state, attempt.message) == ("lost", "lost")
    assert await engine.database.fetchval("select state from holdfast.worker") == "gone"


@needs_curl
async def test_a_shell_worker_that_waits_for_work_stops_at_once(start, engine, eventually):
    shell = await start("sh", str(EXAMPLES / "worker.sh"))
    shell.terminate()
    assert await asyncio.wait_for(shell.wait(), 10) == 0  # well before its long poll would have been answered
    assert await engine.database.fetchval("select state from holdfast.worker") == "gone"


@pytest.mark.slow(
    "it starts a worker program and waits for its lease or stop; "
    "test_the_node_worker_keeps_its_lease_and_hears_of_a_cancel is fast"
)
@needs_curl
async def test_the_shell_worker_stops_a_canceled_task(shouting, harness, eventually):
    _, task, seconds = shouting
    await harness.cancel(task.task_id)
    await eventually(lambda: in_state(harness, task, TaskState.CANCELED), seconds_max=20.0)
    await eventually(lambda: asyncio.to_thread(is_awake, seconds))


@pytest.mark.slow(
    "it starts a worker program and waits for its lease or stop; "
    "test_the_node_worker_keeps_its_lease_and_hears_of_a_cancel is fast"
)
@needs_curl
async def test_the_shell_worker_stops_all_of_its_work_when_its_lease_is_lost(shouting, harness, engine, eventually):
    shell, _, seconds = shouting
    await engine.database.fetch("update holdfast.live set lease_expires_at = holdfast.instant() - interval '1 s'")
    await harness.reap_once()
    assert await asyncio.wait_for(shell.stdout.readline(), 30) == b"stopped\n"
    await eventually(lambda: asyncio.to_thread(is_awake, seconds))


@pytest.mark.slow(
    "it starts a worker program and waits for its lease or stop; "
    "test_the_node_worker_keeps_its_lease_and_hears_of_a_cancel is fast"
)
@needs_curl
async def test_the_shell_worker_stops_its_work_when_no_beat_is_answered(start, engine, harness, eventually):
    seconds = 3000 + random.random()
    async with serving(engine) as url:
        shell = await start("sh", str(EXAMPLES / "worker.sh"), url=url)
        await harness.enqueue(a_task(action="demo.shout", input={"text": "late", "seconds": seconds}))
        await eventually(lambda: asyncio.to_thread(is_sleeping, seconds), seconds_max=30.0)
    assert await asyncio.wait_for(shell.stdout.readline(), 30) == b"stopped\n"
    await eventually(lambda: asyncio.to_thread(is_awake, seconds))
