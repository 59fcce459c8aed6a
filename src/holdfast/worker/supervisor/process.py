"""One worker process, seen from its supervisor: started, watched through its deadline page, killed in time, retired."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

from holdfast._internal.process_tree import kill_session
from holdfast.worker.supervisor import start_orders as wire_orders
from holdfast.worker.supervisor.deadline_page import DeadlinePage
from holdfast.worker.supervisor.start_orders import Orders


class Process:
    """A running child process. When this process ends, the pipe between them closes and the child ends too."""

    def __init__(self, orders: Orders) -> None:
        self.started_at = time.monotonic()
        self.deadline_page = DeadlinePage.create()
        self.was_killed = False
        reading, self._parent_pipe = os.pipe()
        try:
            self._child = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "holdfast.worker.supervisor.child",
                    str(reading),
                    str(self.deadline_page.descriptor),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(reading, self.deadline_page.descriptor),
                start_new_session=True,
                env=os.environ,
            )
        finally:
            os.close(reading)
        with contextlib.suppress(BrokenPipeError):
            os.write(self._parent_pipe, wire_orders.encode(orders))

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code: None while it runs, negative when a signal ended it."""
        return self._child.poll()

    @property
    def is_registered(self) -> bool:
        return self.deadline_page.worker_id != 0

    def signal(self, which: signal.Signals) -> None:
        self._child.send_signal(which)

    def kill(self) -> None:
        """Kill the process. This works on a stopped process too, and on one whose interpreter is blocked."""
        self.was_killed = True
        self._child.kill()

    def is_gone(self) -> bool:
        """Return whether the process and everything it started is dead; kill what is left."""
        return self.exit_code is not None and kill_session(self.pid)

    def forget(self) -> None:
        """Release its deadline page and its pipe."""
        os.close(self._parent_pipe)
        self.deadline_page.close()
