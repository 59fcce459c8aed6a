"""A shared memory page in which a worker process publishes its worker id and the instant when it must be dead.

Shared memory is readable whatever the process is doing: stopped, swapped out, or in C code that blocks the interpreter.
Each cell is one aligned machine word, so a reader never sees half a value.
"""

from __future__ import annotations

import mmap
import os
import tempfile

from holdfast.execution.running_attempt import FOREVER

_BYTES = mmap.PAGESIZE
_WORKER_ID, _KILL_AT = 0, 1


class DeadlinePage:
    """The page of one process. `create` it in the parent; open it by its inherited `descriptor` in the child."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, _BYTES)
        self._cells = memoryview(self._memory).cast("d")

    @classmethod
    def create(cls) -> DeadlinePage:
        """Create a page on an unnamed file: there is nothing to clean up, and no other process can open it."""
        with tempfile.TemporaryFile() as file:
            file.truncate(_BYTES)
            deadline_page = cls(os.dup(file.fileno()))
        deadline_page.kill_at = FOREVER
        return deadline_page

    @property
    def worker_id(self) -> int:
        """The worker id registered in the database; 0 before that."""
        return int(self._cells[_WORKER_ID])

    @worker_id.setter
    def worker_id(self, worker_id: int) -> None:
        self._cells[_WORKER_ID] = float(worker_id)

    @property
    def kill_at(self) -> float:
        """The instant on the machine's monotonic clock when the process must be dead."""
        return self._cells[_KILL_AT]

    @kill_at.setter
    def kill_at(self, instant: float) -> None:
        self._cells[_KILL_AT] = instant

    def close(self) -> None:
        self._cells.release()
        self._memory.close()
        os.close(self.descriptor)
