"""Charts as one SVG file: horizontal bars with whiskers, readable in light and dark mode, without web fonts."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from holdfast_bench.bars import OURS, PEER, RAW, Bar, Chart

WIDTH = 760
LABEL_WIDTH, NUMBER_WIDTH = 150, 150
ROW, BAR_HEIGHT = 28, 18
TITLE_HEIGHT, GAP, MARGIN = 34, 22, 20

# Each colour keeps a contrast of 3:1 or more against white and against near-black.
_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f; }
  .title { font-weight: 600; font-size: 15px; }
  .ground { fill: #ffffff; }
  .ours { fill: #0f7b6c; } .raw { fill: #7d8590; } .peer { fill: #5b79c9; }
  .whisker { stroke: #24292f; stroke-width: 1.5; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .ground { fill: #0d1117; }
    .ours { fill: #2fb3a0; }
    .whisker { stroke: #e6edf3; }
  }
"""
_KINDS = {OURS: "ours", RAW: "raw", PEER: "peer"}


def svg(charts: Sequence[Chart]) -> str:
    """Return one image with all charts below each other."""
    parts: list[str] = []
    top = MARGIN
    for chart in charts:
        parts += _chart(chart, top)
        top += TITLE_HEIGHT + ROW * len(chart.bars) + GAP
    height = top - GAP + MARGIN if charts else 2 * MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
            f'height="{height}" role="img" aria-label="{_aria(charts)}">',
            "<title>Rates of Holdfast beside the raw ceiling</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="ground" width="{WIDTH}" height="{height}" rx="8"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _chart(chart: Chart, top: int) -> list[str]:
    longest = max((bar.high for bar in chart.bars), default=1.0) or 1.0
    scale = (WIDTH - 2 * MARGIN - LABEL_WIDTH - NUMBER_WIDTH) / longest
    title = f'<text class="title" x="{MARGIN}" y="{top + 16}">{escape(chart.title)}</text>'
    rows = [_bar(bar, chart.unit, top + TITLE_HEIGHT + ROW * index, scale) for index, bar in enumerate(chart.bars)]
    return [title, *rows]


def _bar(bar: Bar, unit: str, top: int, scale: float) -> str:
    left, middle = MARGIN + LABEL_WIDTH, top + BAR_HEIGHT / 2
    low, high = left + bar.low * scale, left + bar.high * scale
    return (
        f'<text x="{left - 10}" y="{middle + 4.5}" text-anchor="end">{escape(bar.label)}</text>'
        f'<rect class="{_KINDS[bar.kind]}" x="{left}" y="{top}" width="{max(1.0, bar.value * scale):.1f}" '
        f'height="{BAR_HEIGHT}" rx="3"/>'
        f'<path class="whisker" fill="none" d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 4}v8'
        f'M{high:.1f} {middle - 4}v8"/>'
        f'<text x="{high + 10:.1f}" y="{middle + 4.5}">{bar.value:,.0f} {escape(unit)}</text>'
    )


def _aria(charts: Sequence[Chart]) -> str:
    said = "; ".join(
        f"{chart.title}: " + ", ".join(f"{bar.label} {bar.value:,.0f} {chart.unit}" for bar in chart.bars)
        for chart in charts
    )
    return escape(said, {'"': "&quot;"})
