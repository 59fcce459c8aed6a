"""What takes turns by the day is run whole by `make sweep`, which has to name where it is."""

from __future__ import annotations

import re
from pathlib import Path

from tests.crash import turns
from tests.crash.scenarios import ALIKE, SCENARIOS

TESTS = Path(__file__).resolve().parents[1]
SWEPT = re.compile(r"^\t@CRASH_SWEEP=all .*$", re.MULTILINE)
TURNS = re.compile(r"takes_turns\(\d|from tests\.crash\.turns import|from tests\.crash import turns")


def test_the_sweep_names_every_folder_whose_tests_take_turns():
    [line] = SWEPT.findall((TESTS.parent / "Makefile").read_text())
    swept = {Path(word).name for word in line.split() if word.startswith("tests/")}
    turning = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("*/*.py") if TURNS.search(path.read_text())}
    assert {"cli", "crash", "worker"} <= turning <= swept


def test_every_scenario_meets_every_fault_within_twelve_days(monkeypatch):
    monkeypatch.setattr(turns, "IS_WHOLE", False)
    names = [scenario.name for scenario in SCENARIOS]
    met = set()
    for day in range(12):
        monkeypatch.setattr(turns, "DAY", day)
        today = turns.having_their_turn(names, ALIKE)
        met |= {(name, turns.Turn().mode(1)) for name in today}
        assert {"enqueue_bulk", "reap", "reconcile"} <= today
    assert met == {(name, mode) for name in names for mode in turns.ORDER}
