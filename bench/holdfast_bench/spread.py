"""Statistics over several runs of one measurement: the median counts; minimum and maximum show its reliability."""

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
    """Return the value below which `part` (0 … 1) of all values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def quantiles(values: Sequence[float], *names: str) -> dict[str, float]:
    """Return the named quantiles of the values."""
    return {name: round(percentile(values, _PARTS[name]), 2) for name in names}


def typical(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each quantile over the rounds, so that a bad second of the machine spoils one round only."""
    return {name: round(statistics.median(one[name] for one in rounds), 2) for name in rounds[0]}
