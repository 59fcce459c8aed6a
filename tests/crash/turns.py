"""Which fault strikes at which statement. Every run strikes at every statement; with what takes turns.

In one run each statement meets one of the four faults, and tomorrow the next of them; scenarios that are nearly alike
follow each other every four days. Twelve days, or `make sweep`, which strikes with all four everywhere, see everything.
`CRASH_SWEEP_DAY` repeats a day.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from holdfast.testing.crash import Mode

ORDER = (Mode.KILL_BEFORE, Mode.CUT_AFTER, Mode.KILL_AFTER, Mode.CUT_BEFORE)
IS_WHOLE = os.environ.get("CRASH_SWEEP") == "all"
DAY = int(os.environ.get("CRASH_SWEEP_DAY") or datetime.now(UTC).toordinal())


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
            error.add_note(f"{mode} at statement {k}; to repeat it: CRASH_SWEEP=all pytest -k {mode} …")
            raise


def has_its_turn(name: str, alike: Sequence[Sequence[str]]) -> bool:
    """Whether a scenario is run now: of those that are alike one, for as long as it takes to meet every fault."""
    group = next((names for names in alike if name in names), [name])
    return IS_WHOLE or group[DAY // len(ORDER) % len(group)] == name


TURNS = [Turn(mode) for mode in Mode] if IS_WHOLE else [Turn()]
CUTS = [Mode.CUT_BEFORE, Mode.CUT_AFTER] if IS_WHOLE else [(Mode.CUT_BEFORE, Mode.CUT_AFTER)[DAY % 2]]
"""For who loses connections and lives on: a real worker that is cut off at each of its statements in turn."""
