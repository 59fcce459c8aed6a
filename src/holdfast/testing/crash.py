"""Faults at an exact statement: for k = 1, 2, 3 … kill the process or lose its connection before or after the k-th one.

A `StatementFault` is a tap for a `Database`. `ForkServer` forks the process to be killed from one that has imported
everything, so each k of a sweep takes milliseconds. What the process reported before it died are acknowledgements: a
promise made there must hold whatever happens next.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any

from holdfast.store.database import Tap


class FaultMode(StrEnum):
    """What happens at the k-th statement; a commit counts as one."""

    KILL_BEFORE = "kill_before"
    KILL_AFTER = "kill_after"
    CUT_BEFORE = "cut_before"
    CUT_AFTER = "cut_after"

    @property
    def is_deadly(self) -> bool:
        return self in (FaultMode.KILL_BEFORE, FaultMode.KILL_AFTER)


class StatementFault:
    """Fires at the k-th statement, once each time it is armed. `fired` says whether it did."""

    def __init__(self, mode: FaultMode, k: int) -> None:
        self._mode = mode
        self.arm(k)

    def arm(self, k: int) -> None:
        """Count from here; sessions that are already open keep their tap."""
        self._left = k
        self.fired = False
        self.statement = ""

    def before(self, statement: str) -> None:
        self._left -= 1
        if self._left == 0 and self._mode in (FaultMode.KILL_BEFORE, FaultMode.CUT_BEFORE):
            self._strike(statement)

    def after(self, statement: str) -> None:
        # The server executed the statement, but the client gets no response.
        if self._left == 0 and self._mode in (FaultMode.KILL_AFTER, FaultMode.CUT_AFTER):
            self._strike(statement)

    def _strike(self, statement: str) -> None:
        self.fired = True
        self.statement = statement
        self._left = -1
        if self._mode.is_deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ConnectionResetError(f"{self._mode} at {statement.splitlines()[0]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The arguments of an act: the database, the fault to open it with, prepared values, and how to acknowledge."""

    url: str
    tap: Tap | None
    given: Any
    say: Callable[[Any], None]


Act = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkedResult:
    """The result of a forked process: whether the fault fired, and everything reported before."""

    fired: bool
    said: Sequence[Any]


CLOSE_SECONDS_MAX = 5.0


class ForkServer:
    """Runs functions of one Python file in processes that die at a given statement."""

    def __init__(self, path: Path) -> None:
        self._mother = subprocess.Popen(
            [sys.executable, "-m", "holdfast.testing.fork_server", str(path)],
            # The file may import what its tests can.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, act: str, *, url: str, mode: FaultMode, k: int, given: Any) -> ForkedResult:
        """Run the function `act` of the file in a new process with the fault set."""
        assert self._mother.stdin is not None and self._mother.stdout is not None
        order = {"act": act, "url": url, "mode": mode, "k": k, "given": given}
        self._mother.stdin.write(json.dumps(order) + "\n")
        self._mother.stdin.flush()
        answer = json.loads(self._mother.stdout.readline())
        code = os.waitstatus_to_exitcode(answer["status"])
        assert code in (0, -signal.SIGKILL), f"{act} ended with exit code {code}: see its traceback on stderr"
        return ForkedResult(fired=code != 0, said=answer["said"])

    def close(self) -> None:
        assert self._mother.stdin is not None
        self._mother.stdin.close()
        try:
            self._mother.wait(CLOSE_SECONDS_MAX)
        except subprocess.TimeoutExpired:  # another process has its stdin open
            self._mother.kill()
            self._mother.wait()

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
