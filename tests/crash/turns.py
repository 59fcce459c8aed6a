"""Which fault strikes at which statement. Every run strikes at every statement; with what takes turns.

In one run each statement meets one of the four faults, and tomorrow the next of them: four days, or `make sweep`, which
strikes with all four everywhere, see everything. `HOLDFAST_SWEEP_DAY` repeats a day.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from holdfast.testing.crash import Mode

ORDER = (Mode.KILL_BEFORE, Mode.CUT_AFTER, Mode.KILL_AFTER, Mode.CUT_BEFORE)
IS_WHOLE = os.environ.get("HOLDFAST_SWEEP") == "all"
DAY = int(os.environ.get("HOLDFAST_SWEEP_DAY") or datetime.now(UTC).toordinal())


@dataclass(frozen=True, slots=True)
class Turn:
    """Says how to strike at the k-th statement: always alike, or as it is that fault's turn."""

    always: Mode | None = None

    def __str__(self) -> str:
        return self.always or "in_turn"

    def mode(self, k: int) -> Mode:
        return self.always or ORDER[(k + DAY) % len(ORDER)]

    @contextmanager
    def at(self, k: int) -> Iterator[Mode]:
        """The fault for the k-th statement; whatever fails in the block says where that was."""
        mode = self.mode(k)
        try:
            yield mode
        except BaseException as error:
            error.add_note(f"{mode} at statement {k}; to repeat it: HOLDFAST_SWEEP=all pytest -k {mode} …")
            raise


TURNS = [Turn(mode) for mode in Mode] if IS_WHOLE else [Turn()]
