"""Several runs of one measurement: the median counts, minimum and maximum say how much to trust it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import msgspec


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
