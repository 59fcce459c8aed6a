"""Text rendering of a drawing for terminals: boxes and lines, left to right, never wider than requested.

If the graph is too large or too wide, it is a list in topological order, each node with its upstreams. Crossing lines
pass each other (`─│─`); lines that meet are joined (`┬ ┴ ├ ┼`).
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.core.drawing.canvas import Canvas
from holdfast.core.drawing.channel import Channel, routed
from holdfast.core.drawing.layout import Drawing
from holdfast.core.drawing.placing import placed

BOXES_MAX = 60
_TEXT_WIDTHS = (28, 20, 14, 10)
_LINE_WIDTH_MIN = 20


def draw_text(drawing: Drawing, labels: Mapping[str, str] | None = None, *, width: int = 80) -> str:
    """Render a drawing in at most `width` columns; `labels` adds a line to each node, such as `✓ completed`."""
    shown = {name: _printable(text) for name, text in (labels or {}).items()}
    if len(drawing.boxes) <= BOXES_MAX and drawing.layers.is_complete:
        for text_width in _TEXT_WIDTHS:
            sketch = _Sketch(drawing, shown, text_width)
            if sketch.width <= width:
                return sketch.drawn()
    return _listed(drawing, shown, max(width, _LINE_WIDTH_MIN))


class _Sketch:
    """Boxes on a grid of rows. A node takes two units and a passing line one, so arrivals share their row modulo a
    unit.

    The row below an arrival is therefore free for a lowered exit. Without labels a unit is one box.
    """

    def __init__(self, drawing: Drawing, labels: Mapping[str, str], text_width: int) -> None:
        self.layers = drawing.layers
        self.labels = labels
        self.text_width = text_width
        self.has_labels = any(labels.get(box.node) for box in drawing.boxes)
        self._arrange(is_tall=self.has_labels)
        if not self.has_labels and any(wire.lowered for channel in self.channels for wire in channel.wires):
            self._arrange(is_tall=True)

    def _arrange(self, *, is_tall: bool) -> None:
        layers = self.layers
        self.box_height, unit, units = (4, 3, 2) if is_tall else (3, 4, 1)
        count = len(layers.names)
        heights = [1 if layers.is_dummy(item) else units for item in range(count)]
        tops = placed(layers, heights=heights, anchors=[0] * count, gap=0)
        self.row = [top * unit + 1 for top in tops]
        self.channels = [self._channel(layer) for layer in layers.items[:-1]]
        self.widths = [self._layer_width(layer) for layer in layers.items]
        self.left = [0]
        for layer_width, channel in zip(self.widths, self.channels, strict=False):
            self.left.append(self.left[-1] + layer_width + _channel_width(channel))

    @property
    def width(self) -> int:
        return self.left[-1] + self.widths[-1]

    def drawn(self) -> str:
        canvas = Canvas()
        for index, layer in enumerate(self.layers.items):
            left, right = self.left[index], self.left[index] + self.widths[index] - 1
            for item in layer:
                if not self.layers.is_dummy(item):
                    self._draw_box(canvas, item, left, right)
                else:
                    canvas.horizontal(self.row[item], left, right, [item])
        for index, channel in enumerate(self.channels):
            self._draw_channel(canvas, channel, index)
        return canvas.text()

    def _channel(self, layer: tuple[int, ...]) -> Channel:
        sources = [
            (item, self.row[item], tuple(self.row[successor] for successor in self.layers.after[item]))
            for item in layer
            if self.layers.after[item]
        ]
        return routed(sources)

    def _layer_width(self, layer: tuple[int, ...]) -> int:
        names = [self.layers.names[item] for item in layer if not self.layers.is_dummy(item)]
        texts = [text for name in names for text in (name, self.labels.get(name, ""))]
        return min(max(map(len, texts)), self.text_width) + 4 if texts else 1

    def _draw_box(self, canvas: Canvas, item: int, left: int, right: int) -> None:
        name = self.layers.names[item]
        room = right - left - 3
        top = self.row[item] - 1
        lines = (name, self.labels.get(name, ""))[: self.box_height - 2]
        canvas.box(top, left, right, [_cut(line, room) for line in lines])

    def _draw_channel(self, canvas: Canvas, channel: Channel, index: int) -> None:
        begin = self.left[index] + self.widths[index]
        end = self.left[index + 1] - 1
        for wire in channel.wires:
            turn = end if wire.column is None else begin + 1 + 2 * wire.column
            for item, row in wire.starts.items():
                if item in wire.lowered and self.layers.is_dummy(item):
                    canvas.vertical(begin - 1, row - 1, row, wire.starts)
                # The line starts inside the border or the dummy, so that it is joined to it.
                canvas.horizontal(row, begin - 1, turn, wire.starts)
            if wire.column is not None:
                canvas.vertical(turn, *wire.span, wire.starts)
            for row in wire.ends:
                canvas.horizontal(row, turn, end, wire.starts)
                canvas.join(row, end)
        for item in self.layers.items[index + 1]:
            if self.layers.before[item] and not self.layers.is_dummy(item):
                canvas.put(self.row[item], end, "▶")


def _channel_width(channel: Channel) -> int:
    return 2 * channel.columns + 2 if channel.columns else 3


def _listed(drawing: Drawing, labels: Mapping[str, str], width: int) -> str:
    before: dict[str, list[str]] = {box.node: [] for box in drawing.boxes}
    for route in drawing.routes:
        before[route.downstream].append(route.upstream)
    name_width = min(max(len(box.node) for box in drawing.boxes), width // 2)
    label_width = max((len(labels.get(box.node, "")) for box in drawing.boxes), default=0)
    lines = []
    for box in drawing.boxes:
        label = f"  {labels.get(box.node, ''):<{label_width}}" if label_width else ""
        arrow = f"  ← {', '.join(before[box.node])}" if before[box.node] else ""
        lines.append(_cut(f"{_cut(box.node, name_width):<{name_width}}{label}{arrow}", width).rstrip())
    return "\n".join(lines) + "\n"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "�" for character in text)
