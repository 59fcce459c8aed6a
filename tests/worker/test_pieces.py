"""The small parts under a parent: the board, the fuse, orders, restarts, what a dead worker left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast._internal.process_tree import kill_session
from holdfast.core.tasks.outcome import Completed, Failed, Outcome
from holdfast.execution.attempt_pool import AttemptPool
from holdfast.execution.running_attempt import FOREVER
from holdfast.settings.settings import Settings, WorkerSettings
from holdfast.worker.supervisor import start_orders as wire_orders
from holdfast.worker.supervisor.deadline_page import DeadlinePage
from holdfast.worker.supervisor.process import Process
from holdfast.worker.supervisor.start_orders import ExitCode, Orders
from holdfast.worker.supervisor.supervisor import RESTART_SECONDS_MAX, RestartDelay

FUSE = """
import ctypes, os, signal, sys, time
from holdfast.worker.supervisor.kill_timer import KillTimer
fuse = KillTimer()
fuse.set(time.monotonic() + 60)
fuse.set({when})
{then}
"""


def test_a_board_is_shared_with_whoever_opens_its_descriptor():
    ours = DeadlinePage.create()
    theirs = DeadlinePage(os.dup(ours.descriptor))
    assert (ours.worker_id, ours.kill_at) == (0, FOREVER)
    theirs.worker_id, theirs.kill_at = 2**31, 1234.56789
    assert (ours.worker_id, ours.kill_at) == (2**31, 1234.56789)
    theirs.close()
    ours.close()


def test_orders_arrive_as_they_were_given():
    settings = Settings(url="postgresql://u:secret@h/d", home=Path("/tmp/x"), worker=WorkerSettings(lease_seconds=9))
    orders = Orders(app_ref="shop:app", url="postgresql:///d", settings=settings, slots=3, queues=["a"], name="")
    assert wire_orders.decode(wire_orders.encode(orders)) == orders


def test_a_worker_process_of_an_app_that_means_another_database_does_not_start(tmp_path, capfd):
    (tmp_path / "elsewhere.py").write_text(
        'import holdfast as hf\napp = hf.App("shop", settings=hf.Settings(url="postgresql://127.0.0.1:1/other"))\n'
    )
    told = {"url": "postgresql://127.0.0.1:1/shop", "settings": Settings(), "slots": 1, "queues": None, "name": ""}
    process = Process(Orders(app_ref=f"{tmp_path}/elsewhere.py:app", **told))
    try:
        assert process._child.wait(20) == ExitCode.CANNOT_LOAD
    finally:
        process.kill()
        process.forget()
    assert "settings_differ" in capfd.readouterr().err


def test_restarts_wait_ever_longer_for_those_who_die_young():
    restarts = RestartDelay()
    pauses = [restarts.pause_seconds(lived_seconds=0.5) for _ in range(12)]
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8] and pauses[-1] == RESTART_SECONDS_MAX
    assert restarts.pause_seconds(lived_seconds=3600) == 0.1


@pytest.mark.parametrize(
    ("when", "then"),
    [
        ("time.monotonic() + 0.2", "ctypes.PyDLL(None).sleep(60)"),
        ("time.monotonic() + 0.2", "os.kill(os.getpid(), signal.SIGSTOP)"),
        ("time.monotonic() - 1", "time.sleep(60)"),
    ],
)
def test_the_fuse_kills_a_process_that_cannot_do_it_itself(when, then):
    ended = subprocess.run([sys.executable, "-c", FUSE.format(when=when, then=then)], timeout=20, check=False)
    assert ended.returncode == -signal.SIGKILL


def test_a_fuse_that_is_put_out_kills_nobody():
    program = FUSE.format(when="time.monotonic() + 0.4", then="fuse.set(float('inf')); time.sleep(0.8)")
    assert subprocess.run([sys.executable, "-c", program], timeout=20, check=False).returncode == 0


def test_everything_in_the_session_of_a_dead_worker_is_killed():
    leader = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], start_new_session=True, stdout=subprocess.PIPE)
    with leader.stdout as said:
        left_behind = int(said.readline())
    leader.kill()
    leader.wait()
    deadline = time.monotonic() + 10
    while not kill_session(leader.pid):
        assert time.monotonic() < deadline
    assert not Path(f"/proc/{left_behind}").exists() or "Z" in Path(f"/proc/{left_behind}/stat").read_text()


async def test_a_fault_while_an_attempt_is_run_costs_that_attempt_alone():
    ended: dict[int, Outcome] = {}
    over = asyncio.Event()

    async def run(held: Any) -> Outcome:
        if held.claimed.task_id == 1:
            raise OSError("too many open files")
        return Completed(b"1")

    def at_end(held: Any, outcome: Outcome) -> None:
        ended[held.claimed.task_id] = outcome
        if len(ended) == 2:
            over.set()

    AttemptPool(run, at_end).start(
        SimpleNamespace(claimed=SimpleNamespace(task_id=one, attempt=1), task=None) for one in (1, 2)
    )
    await asyncio.wait_for(over.wait(), 10)
    assert isinstance(ended[1], Failed) and ended[1].failure.type == "OSError"
    assert ended[2] == Completed(b"1")
