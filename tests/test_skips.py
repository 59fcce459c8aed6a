"""Tests that need a program which may be absent say what to install, and a run says at its end what it did not try."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.conftest import pytest_terminal_summary
from tests.skips import ABSENT

TESTS = Path(__file__).parent
REASONS = [
    found
    for path in TESTS.rglob("*.py")
    if path.name not in ("skips.py", "test_skips.py")
    for found in re.findall(r'"([^"]*is not installed[^"]*)"', path.read_text())
]


@pytest.mark.parametrize("reason", REASONS)
def test_a_reason_to_skip_says_what_to_install(reason):
    assert re.search(rf"^\w[\w ]* {ABSENT}`(apt-get|brew|pip) install [^`]+`", reason)


@pytest.mark.parametrize("program", ["pgbouncer", "Redis", "Node", "curl", "Ray", "Schemathesis"])
def test_every_program_that_may_be_absent_has_its_reason(program):
    assert any(program in reason for reason in REASONS)


def test_the_end_of_a_run_tells_what_was_not_tried():
    lines = []
    skipped = [
        SimpleNamespace(longrepr=("a.py", 1, f"Skipped: {reason}"))
        for reason in ("curl is not installed: `apt-get install curl`", "root may write everywhere")
        for _ in range(2)
    ]
    reporter = SimpleNamespace(
        stats={"skipped": skipped}, section=lambda title, **_: lines.append(title), line=lines.append
    )
    pytest_terminal_summary(reporter)
    assert lines == ["not tried here", "2 tests: curl is not installed: `apt-get install curl`"]
    reporter.stats = {"skipped": skipped[2:]}
    pytest_terminal_summary(reporter)
    assert len(lines) == 2
