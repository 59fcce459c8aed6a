"""Marks: what really ran, counted outside the database, in a file that all processes map.

One count byte, one start time and one send time per task, and one last-settle time per worker process. Times are
the machine's monotonic clock. Two processes that mark the same task at the same instant may count once: a double
execution is then seen by the database's own checks instead.
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

MEMBERS_MAX = 64
_TIME = struct.Struct("<d")


class Marks:
    """A mapped file of marks for `capacity` tasks."""

    def __init__(self, path: Path, capacity: int) -> None:
        self.path = path
        self.capacity = capacity
        size = MEMBERS_MAX * 8 + capacity * 17
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._counts = MEMBERS_MAX * 8
        self._starts = self._counts + capacity
        self._sends = self._starts + capacity * 8

    def hit(self, i: int) -> int:
        """Mark an execution of task `i` and say how many there were before."""
        _TIME.pack_into(self._map, self._starts + 8 * i, time.monotonic())
        before = self._map[self._counts + i]
        self._map[self._counts + i] = min(before + 1, 255)
        return before

    def send(self, i: int) -> None:
        """Mark that task `i` is about to be handed in."""
        _TIME.pack_into(self._map, self._sends + 8 * i, time.monotonic())

    def settle(self, member: int) -> None:
        """Mark that a worker process has just committed results."""
        _TIME.pack_into(self._map, 8 * member, time.monotonic())

    def count(self, i: int) -> int:
        return self._map[self._counts + i]

    def started_at(self, i: int) -> float:
        return float(_TIME.unpack_from(self._map, self._starts + 8 * i)[0])

    def sent_at(self, i: int) -> float:
        return float(_TIME.unpack_from(self._map, self._sends + 8 * i)[0])

    def settled_at(self) -> float:
        """When the last result of any worker process was committed."""
        return max(float(_TIME.unpack_from(self._map, 8 * member)[0]) for member in range(MEMBERS_MAX))

    def missing(self, tasks: int) -> int:
        """How many of the first `tasks` did not run."""
        return self._map[self._counts : self._counts + tasks].count(0)

    def doubles(self, tasks: int) -> int:
        """How many executions of the first `tasks` were one too many."""
        counts = self._map[self._counts : self._counts + tasks]
        return sum(counts) - (tasks - counts.count(0))

    def clear(self) -> None:
        self._map[:] = bytes(len(self._map))

    def close(self) -> None:
        self._map.close()


@contextmanager
def new_marks(capacity: int) -> Iterator[Marks]:
    """Marks in memory where the system has a place for that, removed afterwards."""
    shared = Path("/dev/shm")
    descriptor, name = tempfile.mkstemp(prefix="holdfast-bench-", dir=shared if shared.is_dir() else None)
    os.close(descriptor)
    marks = Marks(Path(name), capacity)
    try:
        yield marks
    finally:
        marks.close()
        Path(name).unlink(missing_ok=True)
