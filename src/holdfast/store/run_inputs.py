"""Cached inputs of recent runs: immutable, so a worker that continues a run need not read them at every node."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec

RUNS_MAX = 1_000
INPUT_BYTES_MAX = 4 * 1024
"""Larger inputs are not cached: together they would fill the memory of a worker."""


class Started(msgspec.Struct, frozen=True):
    """The snapshot, input and tags of a run."""

    snapshot_id: int
    input: dict[str, Any]
    tags: list[str] | None


class StartedRuns:
    """The most recently used runs, shared by everything in a process that uses one database."""

    def __init__(self) -> None:
        self._runs: OrderedDict[int, Started] = OrderedDict()

    def get(self, run_id: int) -> Started | None:
        if (found := self._runs.get(run_id)) is not None:
            self._runs.move_to_end(run_id)
        return found

    def keep(self, run_id: int, started: Started, *, size: int) -> None:
        """Cache a run whose encoded input has `size` bytes, evicting the least recently used one."""
        if size <= INPUT_BYTES_MAX:
            self._runs[run_id] = started
            if len(self._runs) > RUNS_MAX:
                self._runs.popitem(last=False)
