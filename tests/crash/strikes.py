"""The faults of the crash sweep, and which of them are in the fast tier.

Every scenario meets every fault. In the fast tier a scenario meets one of them, chosen by its name, so that all four
are met by some scenario; scenarios that are nearly alike are represented by one of their group, and of those that are
neither daily nor alike every third one is fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from tests.crash.scenario import Scenario
from tests.tiers import chosen

from holdfast.testing.crash import FaultMode

CUTS = [
    FaultMode.CUT_BEFORE,
    pytest.param(FaultMode.CUT_AFTER, marks=pytest.mark.slow("a cut before the statement is fast")),
]
"""For a process that loses its connection and lives on: a real worker, cut off at each of its statements in turn."""

DAILY = ("enqueue", "exchange", "fail", "reap", "reconcile")
"""How the names of scenarios begin whose verbs every task goes through: all of them are in the fast tier."""


@contextmanager
def strike_at(mode: FaultMode, k: int) -> Iterator[None]:
    """Name the fault and the statement in whatever fails within the block."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"{mode} at statement {k}")
        raise


def fast_scenarios(names: Sequence[str], alike: Sequence[Sequence[str]]) -> set[str]:
    """The scenarios of the fast tier: the daily ones, one of each group that is alike, every third of the others."""
    grouped = {name for group in alike for name in group}
    daily = {name for name in names if name.startswith(DAILY) and name not in grouped}
    others = [name for name in names if name not in grouped | daily]
    return daily | {group[0] for group in alike} | set(others[::3])


def struck(scenarios: Sequence[Scenario], alike: Sequence[Sequence[str]]) -> list[Any]:
    """Every scenario with every fault, as parameters; a fast scenario keeps one of its faults in the fast tier."""
    fast = {(name, chosen(name, list(FaultMode))) for name in fast_scenarios([one.name for one in scenarios], alike)}
    slow = pytest.mark.slow("another fault of the scenario, or a scenario nearly like it, is fast")
    return [
        pytest.param(one, mode, id=f"{one.name}-{mode}", marks=[] if (one.name, mode) in fast else [slow])
        for one in scenarios
        for mode in FaultMode
    ]
