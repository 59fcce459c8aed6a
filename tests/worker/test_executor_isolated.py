"""An executor runs in the process of its attempt, and takes nothing from what that process promises."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.authoring.loader import load_app
from holdfast.client.client import Client
from holdfast.core.tasks.failure import TIMEOUT_CODE
from holdfast.errors import TaskFailed
from holdfast.worker.isolation.child import MEMORY_CODE
from holdfast.worker.isolation.pool import Isolated
from holdfast.worker.supervisor.start_orders import Orders

pytestmark = pytest.mark.crash

HERE = Path(__file__).resolve().parent
APP = str(HERE / "executor_app.py")


@pytest.fixture
def app():
    return load_app(APP)


@pytest_asyncio.fixture
async def result_of(running_worker, settings, app, tmp_path, monkeypatch):
    """Run one task, and give its output."""
    monkeypatch.setenv("FLEET_JOURNAL", str(tmp_path / "journal"))
    monkeypatch.setenv("PYTHONPATH", str(HERE.parents[1]))
    orders = Orders(app_ref=APP, url=settings.url, settings=settings, slots=5, queues=None, name="")
    async with running_worker(app=app, isolator=Isolated(orders)), Client(settings, app.actions) as client:

        async def run(name, **given):
            return await (await client.enqueue(f"around.{name}", **given)).result(20)

        run.client = client
        yield run


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; "
    "test_what_plain_code_raises_is_what_the_attempt_failed_with is fast"
)
async def test_plain_code_has_the_main_thread_and_no_loop_in_it(result_of):
    done = await result_of("plain")
    inner = done.pop("output")
    assert done == {"before": "none", "pid": inner["pid"]} and inner["pid"] != os.getpid()
    assert (inner["span"], inner["is_main"], inner["awaited"]) == ("around", True, "slept")
    assert (await result_of("plain"))["before"] == "none", "nothing is left to the next"


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; "
    "test_what_plain_code_raises_is_what_the_attempt_failed_with is fast"
)
async def test_a_coroutine_runs_on_one_loop_with_it_and_sees_its_variables_and_the_apps_clock(result_of):
    done = await result_of("coroutine")
    assert done["output"] == {"pid": done["pid"], "span": "around", "at": "2030-01-02T00:00:00+00:00"}


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; "
    "test_what_plain_code_raises_is_what_the_attempt_failed_with is fast"
)
async def test_it_may_call_twice_or_not_at_all(result_of):
    assert len((await result_of("plain", how="twice"))["output"]) == 2
    assert len((await result_of("coroutine", how="twice"))["output"]) == 2
    assert (await result_of("plain", how="never", megabytes=5))["output"] == {"how": "never", "megabytes": 5}


async def test_effects_and_steps_work_in_both(result_of):
    assert (await result_of("send"))["output"] == ["a", "b", "inner"]


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; "
    "test_what_plain_code_raises_is_what_the_attempt_failed_with is fast"
)
async def test_memory_beyond_the_limit_fails_the_attempt_and_what_the_executor_needs_is_not_counted(result_of):
    assert (await result_of("plain", megabytes=58))["output"]["size"] == 58 * 1024 * 1024
    with pytest.raises(TaskFailed) as failed:
        await result_of("plain", megabytes=128)
    assert failed.value.fields["cause"] == MEMORY_CODE
    assert (await result_of("plain", megabytes=58))["output"]["size"] == 58 * 1024 * 1024


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; "
    "test_what_plain_code_raises_is_what_the_attempt_failed_with is fast"
)
async def test_the_signal_reaches_plain_code_and_the_executor_after_it(result_of, journal):
    with pytest.raises(TaskFailed) as failed:
        await result_of("never_listen")
    assert failed.value.fields["cause"] == TIMEOUT_CODE
    assert [entry.word for entry in journal.entries()] == ["start", "terminated", "call-ended"]


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; "
    "test_what_plain_code_raises_is_what_the_attempt_failed_with is fast"
)
async def test_plain_code_that_is_told_to_stop_may_end_by_itself(result_of, journal):
    task = await result_of.client.enqueue("around.until_told")
    await journal.first("start")
    assert await task.cancel("enough") == "canceling"
    assert await task.wait(20) == "canceled"
    assert [entry.word for entry in journal.entries()] == ["start", "stop", "call-ended"]


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; "
    "test_what_plain_code_raises_is_what_the_attempt_failed_with is fast"
)
async def test_a_time_of_its_own_holds_around_plain_code(result_of):
    assert (await result_of("until_told", how="in_time"))["output"] == "late"


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize("name", ["waiting", "waiting_plainly"])
async def test_the_time_limit_covers_the_executor(result_of, journal, name):
    with pytest.raises(TaskFailed) as failed:
        await result_of(name)
    assert failed.value.fields["cause"] == TIMEOUT_CODE
    assert [entry.word for entry in journal.entries()] == ["start", "hang-ended"], "it could clean up"


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize("name", ["until_told", "waiting_plainly"])
async def test_a_signal_from_elsewhere_ends_the_attempt_and_not_the_process(result_of, journal, name):
    how = "hang" if name == "waiting_plainly" else "call"
    task = await result_of.client.enqueue("around.until_told", how=how)
    first = await journal.first("start")
    os.kill(first.pid, signal.SIGTERM)
    with pytest.raises(TaskFailed, match="told to stop"):
        await task.result(20)
    assert (await result_of("plain"))["pid"] == first.pid


async def test_what_plain_code_raises_is_what_the_attempt_failed_with(result_of):
    with pytest.raises(TaskFailed, match="left"):
        await result_of("leave")
    kind = await result_of.client.engine.database.fetchval("select type from holdfast.failure")
    assert kind == "SystemExit"
