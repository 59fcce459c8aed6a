"""The tiers: every family keeps a fast case, a slow test states its reason, and both tiers together are everything."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest
from tests.tiers import chosen, mark_slow_cases, offset

ROOT = Path(__file__).resolve().parents[1]
DAYS = re.compile(r"toordinal|date\.today|utcnow|CRASH_SWEEP")


class Case(pytest.Item):
    """A collected case that is never run."""

    def runtest(self):
        raise AssertionError


@pytest.fixture
def case(request):
    def make(name, *markers):
        made = Case.from_parent(request.session, name=name)
        for marker in markers:
            made.add_marker(marker)
        return made

    return make


def fast(cases):
    mark_slow_cases(cases)
    return [made.name for made in cases if made.get_closest_marker("slow") is None]


@pytest.mark.parametrize("one_in", [2, 3, 4])
def test_one_case_in_so_many_stays_fast_and_at_least_one(case, one_in):
    marker = pytest.mark.representative(one_in=one_in)
    for test, number in product(["test_a", "test_b", "test_c", "test_d"], [1, 2, 3, 7, 10]):
        kept = fast([case(f"{test}[{n}]", marker) for n in range(number)])
        assert number // one_in <= len(kept) <= -(-number // one_in) and kept
        assert kept == fast([case(f"{test}[{n}]", marker) for n in range(number)])


def test_tests_of_one_family_are_counted_together(case):
    marker = pytest.mark.representative(one_in=4, family="crews")
    assert len(fast([case(f"test_{n}", marker) for n in range(4)])) == 1


def test_a_test_without_markers_is_fast(case):
    assert fast([case("test_a"), case("test_b[1]")]) == ["test_a", "test_b[1]"]


def test_families_keep_different_cases():
    names = [f"test_{n}" for n in range(40)]
    assert {offset(name, 4) for name in names} == {0, 1, 2, 3}
    assert {chosen(name, "ab") for name in names} == {"a", "b"}


def test_a_slow_test_says_why(case):
    with pytest.raises(pytest.UsageError, match="does not say why"):
        mark_slow_cases([case("test_a", pytest.mark.slow)])
    mark_slow_cases([case("test_a", pytest.mark.slow("it waits for a minute"))])


def test_both_tiers_together_are_everything():
    makefile = (ROOT / "Makefile").read_text()
    [always] = re.findall(r"^ALWAYS := (.+)$", makefile, re.MULTILINE)
    recipes = dict(re.findall(r"^(\w+): setup.*\n\t@\$\(PYTEST\) -m '(.+)'$", makefile, re.MULTILINE))
    assert recipes == {"fast": "not slow and $(ALWAYS)", "slow": "slow and $(ALWAYS)"}
    assert f"-m '{always}'" in (ROOT / "pyproject.toml").read_text()
    assert re.search(r"^test-all: test .*\n\t@\$\(MAKE\) .*\bslow$", makefile, re.MULTILINE)


def test_no_test_is_chosen_by_the_date():
    found = [path.name for path in (ROOT / "tests").rglob("conftest.py") if DAYS.search(path.read_text())]
    assert not found and not DAYS.search((ROOT / "tests" / "tiers.py").read_text())
