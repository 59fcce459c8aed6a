"""SVG rendering of a drawing: no script, no external font, readable on light and dark backgrounds, inline or as a file.

Colours are CSS variables under the class `holdfast-flow`, so a page can set its own. Every state shows as icon and
word. Nodes have `data-node` and a title, in topological order. Names are escaped.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.core.drawing.layout import BOX_WIDTH, Box, Drawing, Point, Route
from holdfast.core.drawing.state_style import HUES, style_of

_NAME_CHARACTERS_MAX = 21
_GROUND = {"ground": ("#ffffff", "#0e1116"), "box": ("#f7f8fa", "#161b22"), "text": ("#1c2128", "#e6edf3")}
_LINE = {"line": ("#8a939d", "#6b747d")}
_RADIUS, _HEAD = 6, 7
_BROKEN = frozenset({"failed", "upstream_failed", "canceled"})


def draw_svg(drawing: Drawing, states: Mapping[str, str] | None = None) -> str:
    """Render a drawing; `states` maps nodes to state labels and may leave nodes out."""
    known = states or {}
    size = f'width="{drawing.width}" height="{drawing.height}" viewBox="0 0 {drawing.width} {drawing.height}"'
    label = _escaped(f"Flow of {len(drawing.boxes)} nodes and {len(drawing.routes)} edges")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="holdfast-flow" {size} role="img" aria-label="{label}">',
            f"<style>{_style()}</style>",
            '<rect class="ground" width="100%" height="100%"/>',
            *(_route(route, known) for route in drawing.routes),
            *(_box(box, known.get(box.node)) for box in drawing.boxes),
            "</svg>\n",
        ]
    )


def _style() -> str:
    colours = _GROUND | _LINE | dict(HUES)
    light = "".join(f"--hf-{name}:{pair[0]};" for name, pair in colours.items())
    dark = "".join(f"--hf-{name}:{pair[1]};" for name, pair in colours.items())
    hues = "".join(
        f".hf-{name} rect{{stroke:var(--hf-{name})}}.hf-{name} .state{{fill:var(--hf-{name})}}" for name in HUES
    )
    return (
        f".holdfast-flow{{{light}}}"
        f"@media(prefers-color-scheme:dark){{.holdfast-flow{{{dark}}}}}"
        ".holdfast-flow text{font:13px system-ui,sans-serif;fill:var(--hf-text)}"
        ".holdfast-flow .ground{fill:var(--hf-ground)}"
        ".holdfast-flow .node rect{fill:var(--hf-box);stroke:var(--hf-line);stroke-width:1.5}"
        ".holdfast-flow .dashed rect{stroke-dasharray:5 3}"
        ".holdfast-flow .edge path{fill:none;stroke:var(--hf-line);stroke-width:1.5}"
        ".holdfast-flow .edge .head{fill:var(--hf-line);stroke:none}"
        ".holdfast-flow .broken path{stroke:var(--hf-failed);stroke-dasharray:5 3}"
        ".holdfast-flow .broken .head{fill:var(--hf-failed)}" + hues.replace(".hf-", ".holdfast-flow .hf-")
    )


def _box(box: Box, state: str | None) -> str:
    name = _escaped(_cut(box.node))
    full = _escaped(box.node)
    style = None if state is None else style_of(state)
    classes = "node" if style is None else f"node hf-{style.hue}{' dashed' if style.is_dashed else ''}"
    title = full if style is None else f"{full}: {_escaped(style.word)}"
    middle = box.height // 2
    lines = [f'<text x="12" y="{middle + 5 if style is None else middle - 5}">{name}</text>']
    if style is not None:
        lines.append(f'<text class="state" x="12" y="{middle + 15}">{style.icon} {_escaped(_cut(style.word))}</text>')
    return (
        f'<g class="{classes}" data-node="{full}" transform="translate({box.x} {box.y})"><title>{title}</title>'
        f'<rect width="{box.width}" height="{box.height}" rx="{_RADIUS}"/>{"".join(lines)}</g>'
    )


def _route(route: Route, states: Mapping[str, str]) -> str:
    is_broken = states.get(route.upstream) in _BROKEN
    ends = _escaped(f"{route.upstream} → {route.downstream}")
    x, y = route.points[-1]
    return (
        f'<g class="edge{" broken" if is_broken else ""}"><title>{ends}</title><path d="{_path(route.points)}"/>'
        f'<path class="head" d="M{x - _HEAD} {y - 4}l{_HEAD} 4l-{_HEAD} 4z"/></g>'
    )


def _path(points: tuple[Point, ...]) -> str:
    """Build the path: curves between layers, horizontal lines across them."""
    parts = [f"M{points[0][0]} {points[0][1]}"]
    for (x, y), (next_x, next_y) in zip(points[::2], points[1::2], strict=True):
        if (x, y) != points[0]:
            parts.append(f"L{x} {y}")
        bend = min((next_x - x) // 2, BOX_WIDTH // 2)
        parts.append(f"C{x + bend} {y} {next_x - bend} {next_y} {next_x} {next_y}")
    return "".join(parts)


def _cut(text: str) -> str:
    return text if len(text) <= _NAME_CHARACTERS_MAX else f"{text[: _NAME_CHARACTERS_MAX - 1]}…"


def _escaped(text: str) -> str:
    printable = "".join(character if character.isprintable() else "�" for character in text)
    for plain, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        printable = printable.replace(plain, safe)
    return printable
