"""A parent and its children: whatever happens to a child, its work is done, and never by two at once."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from tests.worker.conftest import LEASE_SECONDS

from holdfast.store.statements import sql

pytestmark = pytest.mark.crash


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; test_terminating_lets_running_work_finish is fast"
)
async def test_children_run_what_is_enqueued(fleet, client):
    fleet(processes=2)
    tasks = [await client.enqueue("fleet.add", a=number, b=1) for number in range(20)]
    assert [await task.result(20) for task in tasks] == list(range(1, 21))


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; test_terminating_lets_running_work_finish is fast"
)
async def test_a_killed_child_loses_its_work_to_another_before_the_lease_would_expire(fleet, client, journal):
    killed = fleet()
    task = await client.enqueue("fleet.hang_once")
    first = await journal.first("start")
    os.kill(first.pid, signal.SIGKILL)
    died_at = time.monotonic()
    assert await task.result(20) == 2
    second = await journal.first("start", attempt=2)
    failure = await client.engine.database.fetchrow("select state::text, message from holdfast.failure")
    assert second.pid != first.pid and second.pid in killed.children()
    assert failure["state"] == "l" and "ended while it held the lease" in failure["message"]
    assert second.at > died_at


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; test_terminating_lets_running_work_finish is fast"
)
async def test_the_worker_of_a_killed_child_is_gone_from_the_database(fleet, client, eventually):
    one = fleet()
    await client.result((await client.enqueue("fleet.add", a=1, b=1)).task_id, timeout=20)
    os.kill(await one.child(), signal.SIGKILL)

    async def is_replaced():
        rows = await client.engine.database.fetch("select state from holdfast.worker order by worker_id")
        return [row["state"] for row in rows] == ["gone", "active"]

    await eventually(is_replaced)


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; test_terminating_lets_running_work_finish is fast"
)
async def test_drained_workers_leave_nobody_takes_their_place_and_the_parent_ends(fleet, client, eventually):
    one = fleet(processes=2)
    database = client.engine.database
    await eventually(lambda: workers_in(database, "active", 2))
    first, second = await database.fetch("select worker_id from holdfast.worker order by worker_id")
    await database.fetch(sql("drain_worker"), first["worker_id"])
    await eventually(lambda: workers_in(database, "gone", 1))
    task = await client.enqueue("fleet.add", a=1, b=1)
    assert await task.result(20) == 2, "the other goes on"
    await database.fetch(sql("drain_worker"), second["worker_id"])
    assert await one.ended() == 0 and "none is started in its place" in one.log
    assert await workers_in(database, "gone", 2)


async def workers_in(database, state: str, count: int) -> bool:
    return await database.fetchval("select count(*) from holdfast.worker where state = $1", state) == count


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; test_terminating_lets_running_work_finish is fast"
)
async def test_what_a_killed_child_started_is_dead_before_its_work_is_done_again(fleet, client, journal, tmp_path):
    fleet()
    task = await client.enqueue("fleet.start_a_process_once", pid_file=str(tmp_path / "pid"))
    first = await journal.first("started")
    os.kill(first.pid, signal.SIGKILL)
    assert await task.result(20) == 2


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; test_terminating_lets_running_work_finish is fast"
)
async def test_code_that_holds_the_interpreter_is_killed_before_the_lease_expires(fleet, client, journal, is_gone):
    one = fleet()
    task = await client.enqueue("fleet.hold_interpreter_once")
    first = await journal.first("start")
    assert await task.result(20) == 2
    lease = await client.engine.database.fetchrow("select started_at, ended_at, message from holdfast.failure")
    assert is_gone(first.pid)
    assert "ended while it held the lease" in lease["message"], "it was the parent's kill, not an expired lease"
    assert "could not renew its leases or stop in time: killed" in one.log


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; test_terminating_lets_running_work_finish is fast"
)
async def test_a_stopped_child_is_killed_before_the_lease_expires(fleet, client, journal, is_gone):
    one = fleet()
    task = await client.enqueue("fleet.hang_once")
    first = await journal.first("start")
    os.kill(first.pid, signal.SIGSTOP)
    assert await task.result(20) == 2
    message = await client.engine.database.fetchval("select message from holdfast.failure")
    assert is_gone(first.pid) and "ended while it held the lease" in message
    assert "killed by SIGKILL" in one.log


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; test_terminating_lets_running_work_finish is fast"
)
async def test_a_stopped_idle_child_is_left_alone(fleet, client, eventually, is_gone):
    child = await fleet(processes=1).child()
    await eventually(lambda: client.engine.database.fetch("select from holdfast.worker"))
    os.kill(child, signal.SIGSTOP)
    stopped_at = time.monotonic()
    task = await client.enqueue("fleet.add", a=1, b=1)
    fleet(processes=1)
    assert await task.result(20) == 2
    await asyncio.sleep(stopped_at + LEASE_SECONDS - time.monotonic())  # a lease would be over by now
    os.kill(child, signal.SIGCONT)
    assert not is_gone(child)


async def test_terminating_lets_running_work_finish(fleet, client, journal, gate, eventually):
    """A hang-up that it was started to ignore, as by `nohup`, does not count as a first stop."""
    one = fleet(ignored=signal.SIGHUP)
    tasks = [await client.enqueue(f"fleet.{name}", path=str(gate)) for name in ("wait_for", "wait_in_thread")]
    await eventually(lambda: len(journal.entries("start")) == 2)
    for which in (signal.SIGHUP, signal.SIGTERM):
        one.signal(which)
    await eventually(lambda: "children finish their work" in one.log)
    gate.touch()
    assert [await task.result(20) for task in tasks] == ["done", "done"]
    assert await one.ended() == 0
    await one.is_extinct()
    assert {entry.attempt for entry in journal.entries()} == {1}


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; test_terminating_lets_running_work_finish is fast"
)
async def test_a_graceful_stop_outlasts_the_lease(fleet, client, journal, gate, eventually):
    one = fleet()
    task = await client.enqueue("fleet.wait_for", path=str(gate))
    await journal.first("start")
    one.signal(signal.SIGTERM)
    expires = "select lease_expires_at from holdfast.live"
    began = await client.engine.database.fetchval(expires)

    async def is_renewed():
        return await client.engine.database.fetchval(f"select ({expires}) > $1 and holdfast.instant() > $1", began)

    await eventually(is_renewed)
    gate.touch()
    assert await task.result(20) == "done"
    assert await one.ended() == 0


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; test_terminating_lets_running_work_finish is fast"
)
async def test_interrupting_twice_hands_work_back_at_once(fleet, client, journal, gate):
    one = fleet()
    task = await client.enqueue("fleet.wait_for", path=str(gate))
    await journal.first("start")
    await one.interrupt_twice()
    assert await one.ended() == 0
    await one.is_extinct()
    row = await client.engine.database.fetchrow("select state, attempt, losses from holdfast.live")
    assert dict(row) == {"state": b"q", "attempt": 1, "losses": 0}
    gate.touch()
    fleet()
    assert await task.result(20) == "done"


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; test_terminating_lets_running_work_finish is fast"
)
async def test_interrupting_twice_does_not_wait_for_a_thread(fleet, client, journal, gate):
    """Started as a shell starts what runs in the background: with interrupts ignored."""
    one = fleet(ignored=signal.SIGINT)
    task = await client.enqueue("fleet.wait_in_thread", path=str(gate))
    await journal.first("start")
    await one.interrupt_twice()
    assert await one.ended() == 0
    await one.is_extinct()
    # The parent saw it end, and knows that it was asked to: no loss.
    row = await client.engine.database.fetchrow("select state, attempt, losses from holdfast.live")
    assert dict(row) == {"state": b"q", "attempt": 1, "losses": 0}
    gate.touch()
    fleet()
    assert await task.result(20) == "done"


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; test_terminating_lets_running_work_finish is fast"
)
async def test_an_app_that_cannot_be_imported_ends_the_parent(fleet, tmp_path):
    (tmp_path / "broken.py").write_text("import nowhere_to_be_found\n")
    one = fleet(app_ref="broken.py:app", processes=2)
    assert await one.ended() == 78
    assert "nowhere_to_be_found" in one.log and "no worker for broken.py:app can start" in one.log


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; test_terminating_lets_running_work_finish is fast"
)
async def test_a_child_that_keeps_dying_is_started_ever_later(fleet, tmp_path, eventually):
    (tmp_path / "dying.py").write_text("import os\nos._exit(3)\n")
    one = fleet(app_ref="dying.py:app")
    await eventually(lambda: "3 in a row died young" in one.log)
    pauses = [
        line.split("starting another in ")[1].split(" s")[0] for line in one.log.splitlines() if "died young" in line
    ]
    assert pauses[:3] == ["0.1", "0.2", "0.4"]
    one.signal(signal.SIGTERM)
    assert await one.ended() == 0


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; test_terminating_lets_running_work_finish is fast"
)
async def test_children_of_a_killed_parent_hand_back_and_leave(fleet, client, journal, gate):
    one = fleet()
    task = await client.enqueue("fleet.wait_for", path=str(gate))
    await journal.first("start")
    one.children()
    one.signal(signal.SIGKILL)
    await one.is_extinct()
    assert "the parent process is gone" in one.log
    gate.touch()
    fleet()
    assert await task.result(20) == "done"


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; test_terminating_lets_running_work_finish is fast"
)
async def test_a_killed_parent_does_not_leave_code_that_holds_the_interpreter(fleet, client, journal):
    one = fleet()
    task = await client.enqueue("fleet.hold_interpreter_once")
    await journal.first("start")
    one.children()
    one.signal(signal.SIGKILL)
    await one.is_extinct()
    fleet()
    assert await task.result(20) == 2


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; test_terminating_lets_running_work_finish is fast"
)
async def test_a_killed_fleet_loses_its_work_to_another_after_the_lease(fleet, client, journal):
    one = fleet()
    task = await client.enqueue("fleet.hang_once")
    first = await journal.first("start")
    for pid in (one.process.pid, first.pid):
        os.kill(pid, signal.SIGKILL)
    fleet()
    assert await task.result(20) == 2
    message = await client.engine.database.fetchval("select message from holdfast.failure")
    assert "expired" in message
