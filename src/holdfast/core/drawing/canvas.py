"""Character grid for line drawings: lines know their directions, so corners, joints and crossings are drawn
correctly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_NORTH, _EAST, _SOUTH, _WEST = 1, 2, 4, 8
_LINES = {
    _NORTH: "│",
    _SOUTH: "│",
    _EAST: "─",
    _WEST: "─",
    _NORTH | _SOUTH: "│",
    _EAST | _WEST: "─",
    _SOUTH | _EAST: "┌",
    _SOUTH | _WEST: "┐",
    _NORTH | _EAST: "└",
    _NORTH | _WEST: "┘",
    _NORTH | _SOUTH | _EAST: "├",
    _NORTH | _SOUTH | _WEST: "┤",
    _EAST | _WEST | _SOUTH: "┬",
    _EAST | _WEST | _NORTH: "┴",
    _NORTH | _EAST | _SOUTH | _WEST: "┼",
}
_CROSSING = "│"

Cell = tuple[int, int]


class Canvas:
    """The drawing so far. Lines have owners: crossing lines without a common owner are not joined."""

    def __init__(self) -> None:
        self._bits: dict[Cell, int] = {}
        self._across: dict[Cell, set[int]] = {}
        self._down: dict[Cell, set[int]] = {}
        self._texts: dict[Cell, str] = {}

    def horizontal(self, row: int, left: int, right: int, owners: Iterable[int]) -> None:
        """Draw a line along a row, both ends included."""
        for column in range(left, right + 1):
            bits = (_WEST if column > left else 0) | (_EAST if column < right else 0)
            self._add((row, column), bits)
            self._across.setdefault((row, column), set()).update(owners)

    def vertical(self, column: int, top: int, bottom: int, owners: Iterable[int]) -> None:
        """Draw a line along a column, both ends included."""
        for row in range(top, bottom + 1):
            bits = (_NORTH if row > top else 0) | (_SOUTH if row < bottom else 0)
            self._add((row, column), bits)
            self._down.setdefault((row, column), set()).update(owners)

    def join(self, row: int, column: int) -> None:
        """Continue a line to the east."""
        self._add((row, column), _EAST)

    def box(self, top: int, left: int, right: int, lines: Sequence[str]) -> None:
        """Draw a frame around lines of text. It has no owners, so every line that reaches it is joined."""
        bottom = top + len(lines) + 1
        for column in range(left, right):
            for row in (top, bottom):
                self._add((row, column), _EAST)
                self._add((row, column + 1), _WEST)
        for row in range(top, bottom):
            for column in (left, right):
                self._add((row, column), _SOUTH)
                self._add((row + 1, column), _NORTH)
        for row, line in enumerate(lines, start=top + 1):
            for column, character in enumerate(line, start=left + 2):
                self.put(row, column, character)

    def put(self, row: int, column: int, character: str) -> None:
        """Write one character over any line."""
        self._texts[row, column] = character

    def text(self) -> str:
        """Return all rows from the first drawn one, without trailing spaces."""
        cells = {cell: self._line(cell) for cell in self._bits} | self._texts
        rows: dict[int, dict[int, str]] = {}
        for (row, column), character in cells.items():
            rows.setdefault(row, {})[column] = character
        lines = [rows.get(row, {}) for row in range(min(rows, default=0), max(rows, default=-1) + 1)]
        return "".join(f"{_joined(line)}\n" for line in lines)

    def _add(self, cell: Cell, bits: int) -> None:
        self._bits[cell] = self._bits.get(cell, 0) | bits

    def _line(self, cell: Cell) -> str:
        bits = self._bits[cell]
        across, down = self._across.get(cell), self._down.get(cell)
        if across and down and not across & down:
            return _CROSSING
        return _LINES.get(bits, " ")


def _joined(line: dict[int, str]) -> str:
    return "".join(line.get(column, " ") for column in range(max(line, default=-1) + 1))
