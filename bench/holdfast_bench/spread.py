"""Several runs of one measurement: the median counts, minimum and maximum say how much to trust it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

_PARTS = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    median: float
    min: float
    max: float
    runs: int


def spread(values: Iterable[float]) -> Spread:
    values = list(values)
    return Spread(median=statistics.median(values), min=min(values), max=max(values), runs=len(values))


def percentile(values: Iterable[float], part: float) -> float:
    """The value below which `part` (0 … 1) of all values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def quantiles(values: Sequence[float], *names: str) -> dict[str, float]:
    """The named parts of what was measured."""
    return {name: round(percentile(values, _PARTS[name]), 2) for name in names}


def typical(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The quantiles of the round in the middle, each by itself: one bad second of the machine spoils one round."""
    return {name: round(statistics.median(one[name] for one in rounds), 2) for name in rounds[0]}
