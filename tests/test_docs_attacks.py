"""The page of attacks has a row for each, and every test it names exists."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROWS = re.findall(r"^\| (\d+) \|(.*)\|$", (ROOT / "docs" / "attacks.md").read_text(), re.MULTILINE)


@cache
def known_tests() -> frozenset[str]:
    found = (re.findall(r"\bdef (test_\w+)\(", path.read_text()) for path in (ROOT / "tests").rglob("test_*.py"))
    return frozenset(name for names in found for name in names)


def test_there_is_a_row_for_each():
    assert [int(number) for number, _ in ROWS] == list(range(1, 42))


@pytest.mark.parametrize("row", [text for _, text in ROWS], ids=[number for number, _ in ROWS])
def test_it_names_tests_that_exist_or_says_why_it_has_none(row):
    named = set(re.findall(r"`(test_\w+)`", row))
    assert named <= known_tests()
    assert bool(named) != ("does not apply" in row)
