"""Which fault strikes at which statement, in what takes turns by the day.

In one run each statement meets one of the four faults, and tomorrow the next of them. Scenarios that are nearly alike,
and halves of those that are not of the daily verbs, follow each other every four days. Twelve days, or `make sweep`,
which strikes with all four everywhere, see everything.
`CRASH_SWEEP_DAY` repeats a day.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from holdfast.testing.crash import FaultMode

ORDER = (FaultMode.KILL_BEFORE, FaultMode.CUT_AFTER, FaultMode.KILL_AFTER, FaultMode.CUT_BEFORE)
IS_WHOLE = os.environ.get("CRASH_SWEEP") == "all"
DAY = int(os.environ.get("CRASH_SWEEP_DAY") or datetime.now(UTC).toordinal())


@dataclass(frozen=True, slots=True)
class Turn:
    """Says how to strike at the k-th statement: always alike, or as it is that fault's turn."""

    always: FaultMode | None = None

    def __str__(self) -> str:
        return self.always or "in_turn"

    def mode(self, k: int) -> FaultMode:
        return self.always or ORDER[(k + DAY) % len(ORDER)]

    @contextmanager
    def at(self, k: int) -> Iterator[FaultMode]:
        """The fault for the k-th statement; whatever fails in the block says where that was."""
        mode = self.mode(k)
        try:
            yield mode
        except BaseException as error:
            error.add_note(f"{mode} at statement {k}; to repeat it: CRASH_SWEEP=all pytest -k {mode} …")
            raise


DAILY = ("enqueue", "exchange", "fail", "reap", "reconcile")
"""How the names of scenarios begin whose verbs every task goes through: they are struck in every run."""


def having_their_turn(names: Sequence[str], alike: Sequence[Sequence[str]]) -> set[str]:
    """Which scenarios are run now, for as long as it takes to meet every fault: of those that are alike one, and every
    second of those that are neither daily nor alike."""
    if IS_WHOLE:
        return set(names)
    turn = DAY // len(ORDER)
    grouped = {name for group in alike for name in group}
    daily = {name for name in names if name.startswith(DAILY) and name not in grouped}
    others = [name for name in names if name not in grouped | daily]
    return daily | {group[turn % len(group)] for group in alike} | set(others[turn % 2 :: 2])


TURNS = [Turn(mode) for mode in FaultMode] if IS_WHOLE else [Turn()]
CUTS = (
    [FaultMode.CUT_BEFORE, FaultMode.CUT_AFTER] if IS_WHOLE else [(FaultMode.CUT_BEFORE, FaultMode.CUT_AFTER)[DAY % 2]]
)
"""For who loses connections and lives on: a real worker that is cut off at each of its statements in turn."""
