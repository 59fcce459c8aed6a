"""Output of results: a table of targets and results with bar charts, or plain tab-separated lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast_bench.bars import OURS, PEER, RAW, Chart, charts
from holdfast_bench.targets import TargetLine, lines

BAR_WIDTH = 36
_COLOURS = {OURS: "green", RAW: "bright_black", PEER: "blue"}


def table(results: Mapping[str, Any]) -> RenderableType:
    """Return a table of all measurements, each line with its target and whether it is met."""
    found = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    found.add_column("measured")
    found.add_column("value", justify="right")
    found.add_column("target", justify="right")
    found.add_column("verdict")
    found.add_column("", style="dim")
    for line in lines(results):
        found.add_row(line.name, line.value, line.target, _coloured(line), line.detail)
    parts: list[RenderableType] = [found, *(_chart(chart) for chart in charts(results))]
    if pages := _pages(results):
        shown = Table("page", "p50 ms", "p99 ms", title="Pages, slowest first", title_justify="left", box=None)
        for name, page in pages:
            shown.add_row(name, f"{page['p50']:g}", f"{page['p99']:g}")
        parts.append(shown)
    if notes := _peer_notes(results):
        parts.append(notes)
    return Group(*parts)


def plain(results: Mapping[str, Any]) -> str:
    """Return one line per number: name, value, target, result, detail, separated by tabs."""
    rows = ["\t".join((line.name, line.value, line.target, verdict(line), line.detail)) for line in lines(results)]
    rows += [
        f"peer {name}\t{peer.get('drain_per_s', '')}\t\t\t{peer.get('note', '')}"
        for name, peer in results.get("peers", {}).items()
    ]
    rows += [
        f"peer {name}\t{peer['nodes_per_s'] or ''}\t\t\t{peer.get('note') or _times(peer)}"
        for name, peer in _flow_peers(results).items()
    ]
    rows += [f"page {name}\t{page['p99']:g} ms\t\t\tp50 {page['p50']:g} ms" for name, page in _pages(results)]
    return "\n".join(rows)


def _pages(results: Mapping[str, Any]) -> list[tuple[str, Mapping[str, float]]]:
    """Return every measured page, the slowest first."""
    found: Mapping[str, Mapping[str, float]] = results.get("pages", {}).get("pages", {})
    return sorted(found.items(), key=lambda one: -one[1]["p99"])


def _flow_peers(results: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = results.get("flow", {}).get("peers", {})
    return found


def _times(peer: Mapping[str, Any]) -> str:
    return f"nodes/s; ours went {peer['ratio']:g} times as fast"


def verdict(line: TargetLine) -> str:
    return "unknown" if line.is_met is None else "met" if line.is_met else "missed"


def print_table(results: Mapping[str, Any]) -> None:
    Console().print(table(results))


def _coloured(line: TargetLine) -> Text:
    return Text(verdict(line), style={None: "yellow", True: "green", False: "red"}[line.is_met])


def _chart(chart: Chart) -> Table:
    longest = max((bar.value for bar in chart.bars), default=1.0) or 1.0
    drawn = Table(title=chart.title, title_justify="left", title_style="bold", box=None, show_header=False)
    drawn.add_column(justify="right")
    drawn.add_column(width=BAR_WIDTH)
    drawn.add_column(justify="right")
    drawn.add_column(style="dim")
    for bar in chart.bars:
        blocks = _blocks(bar.value / longest)
        between = f"{bar.low:,.0f} – {bar.high:,.0f}"
        drawn.add_row(bar.label, Text(blocks, style=_COLOURS[bar.kind]), f"{bar.value:,.0f}", f"{between} {chart.unit}")
    return drawn


def _blocks(part: float) -> str:
    eighths = max(1, round(part * BAR_WIDTH * 8))
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


def _peer_notes(results: Mapping[str, Any]) -> RenderableType | None:
    everybody = {**results.get("peers", {}), **_flow_peers(results)}
    said = [f"{name}: {peer['note']}" for name, peer in everybody.items() if "note" in peer]
    said += [
        f"{name}: {peer['nodes_per_s']:g} {_times(peer)}"
        for name, peer in _flow_peers(results).items()
        if peer["ratio"]
    ]
    return Text("\n".join(said), style="dim") if said else None
