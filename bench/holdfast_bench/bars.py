"""Bar charts as values. The terminal chart and the SVG draw the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast_bench.spread import Spread

OURS, RAW, PEER = "ours", "raw", "peer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar with its whisker from `low` to `high`."""

    label: str
    kind: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    title: str
    unit: str
    bars: tuple[Bar, ...]


def charts(results: Mapping[str, Any]) -> list[Chart]:
    """Return the comparisons in these results, fastest bar first."""
    found = []
    if drain := results.get("drain"):
        bars = [_bar("Holdfast", OURS, drain["spread"]), _bar("raw SQL", RAW, drain["raw_spread"])]
        bars += [
            _bar(name, PEER, peer["spread"]) for name, peer in results.get("peers", {}).items() if "spread" in peer
        ]
        found.append(_chart(f"Drain, {drain['processes']} worker processes", bars))
    flow = results.get("flow", {})
    if runs := {name: peer["spread"] for name, peer in flow.get("peers", {}).items() if "spread" in peer}:
        bars = [_bar("Holdfast", OURS, flow["spread"]), *(_bar(name, PEER, one) for name, one in runs.items())]
        found.append(_chart(f"Runs of 1 → {flow['width']} → 1, nodes", bars))
    if enqueue := results.get("enqueue"):
        for kind, title in (("bulk", "Enqueue, 1,000 a call"), ("single", "Enqueue, one by one")):
            bars = [
                _bar("Holdfast", OURS, enqueue[f"{kind}_spread"]),
                _bar("raw SQL", RAW, enqueue[f"raw_{kind}_spread"]),
            ]
            found.append(_chart(title, bars))
    return found


def _bar(label: str, kind: str, runs: Mapping[str, float] | Spread) -> Bar:
    values = runs if isinstance(runs, Mapping) else {"median": runs.median, "min": runs.min, "max": runs.max}
    return Bar(label=label, kind=kind, value=values["median"], low=values["min"], high=values["max"])


def _chart(title: str, bars: list[Bar]) -> Chart:
    return Chart(title=title, unit="tasks/s", bars=tuple(sorted(bars, key=lambda bar: -bar.value)))
