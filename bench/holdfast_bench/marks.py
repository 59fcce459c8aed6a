"""Marks: records of executions outside the database, in a file that all processes map.

For each task there are one count byte, one start time and one note (when it was sent, or which process runs it). Times
are of the machine's monotonic clock. Two processes that mark the same task at the same instant may count once: such a
double execution is left to the database's own checks.

Standard library only: drivers of other engines load this file too.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TIME = struct.Struct("<d")
_PIDS = struct.Struct("<ii")


class Marks:
    """A mapped file of marks for `capacity` tasks."""

    def __init__(self, path: Path, capacity: int) -> None:
        self.path = path
        self.capacity = capacity
        size = capacity * 17
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._starts = capacity
        self._notes = capacity * 9

    def hit(self, i: int) -> int:
        """Mark an execution of task `i`, and return how many there were before."""
        _TIME.pack_into(self._map, self._starts + 8 * i, time.monotonic())
        before = self._map[i]
        self._map[i] = min(before + 1, 255)
        return before

    def send(self, i: int) -> None:
        """Record that task `i` is about to be enqueued."""
        _TIME.pack_into(self._map, self._notes + 8 * i, time.monotonic())

    def hold(self, i: int) -> None:
        """Record which process runs task `i`, and its parent."""
        _PIDS.pack_into(self._map, self._notes + 8 * i, os.getpid(), os.getppid())

    def count(self, i: int) -> int:
        return self._map[i]

    def started_at(self, i: int) -> float:
        return float(_TIME.unpack_from(self._map, self._starts + 8 * i)[0])

    def sent_at(self, i: int) -> float:
        return float(_TIME.unpack_from(self._map, self._notes + 8 * i)[0])

    def holder(self, i: int) -> tuple[int, int]:
        """Return the process that last ran task `i`, and its parent."""
        pid, parent = _PIDS.unpack_from(self._map, self._notes + 8 * i)
        return int(pid), int(parent)

    def missing(self, tasks: int) -> int:
        """Return how many of the first `tasks` did not run."""
        return self._map[:tasks].count(0)

    def doubles(self, tasks: int) -> int:
        """Return how many executions of the first `tasks` were repetitions."""
        counts = self._map[:tasks]
        return sum(counts) - (tasks - counts.count(0))

    def first_started_at(self, tasks: int) -> float:
        """Return when the first of the first `tasks` started; 0 if none did."""
        return min((self.started_at(i) for i in range(tasks) if self._map[i]), default=0.0)

    def clear(self) -> None:
        self._map[:] = bytes(len(self._map))

    def forget(self, tasks: int) -> None:
        """Reset the counts of the first `tasks`; the others are kept."""
        self._map[:tasks] = bytes(tasks)

    def close(self) -> None:
        self._map.close()


@contextmanager
def new_marks(capacity: int) -> Iterator[Marks]:
    """Yield marks in shared memory where the system has it, removed afterwards."""
    shared = Path("/dev/shm")
    descriptor, name = tempfile.mkstemp(prefix="holdfast-bench-", dir=shared if shared.is_dir() else None)
    os.close(descriptor)
    marks = Marks(Path(name), capacity)
    try:
        yield marks
    finally:
        marks.close()
        Path(name).unlink(missing_ok=True)
