"""A pipe from the supervisor to its child: it carries the start orders, and closes when the supervisor dies."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

ORDERS_BYTES_MAX = 1024 * 1024


class ParentPipe:
    """Reads the start orders, then waits in a thread for the pipe to close."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_inheritable(descriptor, False)
        self._rest = b""

    def read_line(self) -> bytes:
        """Return the first line; empty if the parent died before it wrote one."""
        while b"\n" not in self._rest and len(self._rest) < ORDERS_BYTES_MAX:
            part = os.read(self._descriptor, 65536)
            if not part:
                return b""
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def watch(self, on_end: Callable[[], None]) -> None:
        """Call `on_end` from a thread once the parent is dead."""
        threading.Thread(target=self._wait, args=(on_end,), name="holdfast-parent-pipe", daemon=True).start()

    def _wait(self, on_end: Callable[[], None]) -> None:
        while os.read(self._descriptor, 65536):
            pass
        on_end()
