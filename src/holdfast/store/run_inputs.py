"""What recent runs were started with: immutable, so a worker that carries a run on need not read it at every node."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec

RUNS_MAX = 1_000
INPUT_BYTES_MAX = 4 * 1024
"""Larger inputs are read again where they are needed: together they would fill the memory of a worker."""


class Started(msgspec.Struct, frozen=True):
    """What a run runs, and what it was given."""

    snapshot_id: int
    input: dict[str, Any]
    tags: list[str] | None


class StartedRuns:
    """The runs met last. Shared by everything in a process that talks to one database."""

    def __init__(self) -> None:
        self._runs: OrderedDict[int, Started] = OrderedDict()

    def get(self, run_id: int) -> Started | None:
        if (found := self._runs.get(run_id)) is not None:
            self._runs.move_to_end(run_id)
        return found

    def keep(self, run_id: int, started: Started, *, size: int) -> None:
        """Remember a run whose encoded input has `size` bytes, in place of the one met longest ago."""
        if size <= INPUT_BYTES_MAX:
            self._runs[run_id] = started
            if len(self._runs) > RUNS_MAX:
                self._runs.popitem(last=False)
