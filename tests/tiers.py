"""Two test tiers: fast by default, `slow` by marker. The date plays no part, so a commit always runs the same tests.

`slow("reason")` marks a test, or one case of it. `representative(one_in=n)` marks a family of cases of which one in n
stays fast: this module marks the others as slow when pytest collects them. It is a plugin of tests/conftest.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import pytest
from hypothesis import settings

# A deadline for each value is an assertion about absolute time, which fails on a busy machine.
settings.register_profile("holdfast", deadline=None)
settings.load_profile("holdfast")


def offset(name: str, one_in: int) -> int:
    """The position of the first fast case of a family: a hash of its name, so that families keep different cases."""
    return crc32(name.encode()) % one_in


def chosen(name: str, cases: Sequence[Any]) -> Any:
    """The one case of a family that is fast."""
    return cases[offset(name, len(cases))]


def family_of(item: pytest.Item, marker: pytest.Mark) -> str:
    """The family whose cases are counted together: `family=…`, or all cases of one test."""
    test = item.nodeid.partition("[")[0].partition("@")[0]  # pytest-xdist appends "@group".
    return str(marker.kwargs.get("family") or test)


def mark_slow_cases(items: Sequence[pytest.Item]) -> None:
    """Mark as slow all but the representatives of each family, and refuse a slow test that states no reason."""
    families: dict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if (marker := item.get_closest_marker("representative")) is not None:
            families[family_of(item, marker), marker.kwargs["one_in"]].append(item)
    for (family, one_in), cases in families.items():
        first = offset(family, min(one_in, len(cases)))
        for position, item in enumerate(cases):
            if position % one_in != first:
                item.add_marker(pytest.mark.slow(f"one case in {one_in} of {family} represents it"))
    for item in items:
        if any(not marker.args for marker in item.iter_markers("slow")):
            raise pytest.UsageError(f'{item.nodeid} is slow and does not say why: pytest.mark.slow("reason")')


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow cases of families before `-m` selects a tier."""
    mark_slow_cases(items)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the seed of property tests: `make` fixes it, so that a commit always tries the same values."""
    if (seed := config.getoption("--hypothesis-seed", None)) is not None:
        terminalreporter.line(f"property tests: --hypothesis-seed={seed}")
