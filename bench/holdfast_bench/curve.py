"""Curves over time as one SVG file, one panel below the other, each with its own scale for readability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

WIDTH, PANEL, GAP, MARGIN, LEFT = 760, 96, 44, 24, 70

_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #24292f; }
  .title { font-weight: 600; font-size: 14px; }
  .ground { fill: #ffffff; } .axis { stroke: #7d8590; stroke-width: 1; }
  .attempts { fill: none; stroke: #0f7b6c; stroke-width: 1.8; }
  .retries { fill: none; stroke: #bc4c00; stroke-width: 1.8; stroke-dasharray: 4 3; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .ground { fill: #0d1117; } .attempts { stroke: #2fb3a0; } .retries { stroke: #f0883e; }
  }
"""


def storm_svg(storm: Mapping[str, Any]) -> str:
    """Return the SVG of attempts per second, with retries dashed, for each kind of protection."""
    arms: Mapping[str, Any] = storm["arms"]
    height = 2 * MARGIN + 22 + len(arms) * (PANEL + GAP) - GAP + 16
    panels = [
        part
        for number, (name, arm) in enumerate(arms.items())
        for part in _panel(name, arm, MARGIN + 22 + number * (PANEL + GAP))
    ]
    title = f"{storm['tasks']:,} failing tasks: attempts per second (retries dashed)"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
            f'height="{height}" role="img" aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="ground" width="{WIDTH}" height="{height}" rx="8"/>',
            f'<text class="title" x="{MARGIN}" y="{MARGIN}">{escape(title)}</text>',
            *panels,
            "</svg>\n",
        ]
    )


def _panel(name: str, arm: Mapping[str, Any], top: int) -> list[str]:
    attempts, retries = arm["attempts_per_s"], arm["retries_per_s"]
    highest, bottom = max(1, *attempts), top + 18 + PANEL - 18
    said = f"{name}: {arm['attempts']:,} attempts, at most {arm['attempts_per_s_max']:,}/s; {arm['retries']:,} retries"
    return [
        f'<text x="{MARGIN}" y="{top + 8}">{escape(said)}</text>',
        f'<path class="axis" d="M{LEFT} {top + 18}V{bottom}H{WIDTH - MARGIN}" fill="none"/>',
        f'<text x="{LEFT - 8}" y="{top + 26}" text-anchor="end">{highest:,}</text>',
        f'<text x="{LEFT - 8}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{WIDTH - MARGIN}" y="{bottom + 14}" text-anchor="end">{len(attempts)} s</text>',
        f'<path class="attempts" d="{_path(attempts, highest, top + 18, bottom)}"/>',
        f'<path class="retries" d="{_path(retries, highest, top + 18, bottom)}"/>',
    ]


def _path(values: Sequence[int], highest: int, top: int, bottom: int) -> str:
    step = (WIDTH - MARGIN - LEFT) / max(1, len(values) - 1)
    points = (
        f"{LEFT + step * index:.1f} {bottom - (bottom - top) * value / highest:.1f}"
        for index, value in enumerate(values)
    )
    return "M" + "L".join(points)
