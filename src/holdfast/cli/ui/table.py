"""Layout of a table on a terminal: ids, states and queues stay whole, the note shrinks first.

A column stays whole unless declared otherwise. `stretch` marks the note, which shrinks first; `shrinks` marks other
long text. `optional` columns are dropped, the last one first, if the others do not fit. A table that is still too wide
is printed wider than the terminal, because a truncated id is useless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.cli.ui.words import one_line

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

T = TypeVar("T")

GAP = 2
_NOTE_FLOORS = (24, 10)
_TEXT_FLOORS = (16, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Generic[T]):
    """One column: its title, and a row's text and colour. `plain` is the raw value for pipes, where it differs."""

    title: str
    text: Callable[[T], str]
    plain: Callable[[T], Any] | None = None
    hue: Callable[[T], str] | None = None
    right: bool = False
    stretch: bool = False
    shrinks: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedColumn:
    """A visible column: its index among all columns, and its width."""

    index: int
    width: int


def fitted(columns: Sequence[Column[Any]], naturals: Sequence[int], room: int) -> list[FittedColumn]:
    """Return the columns that fit and their widths; `naturals` are the widths without truncation."""
    shown = list(range(len(columns)))
    while True:
        widths = _shrunk(columns, naturals, shown, room)
        droppable = [index for index in shown if columns[index].optional]
        if _total(widths.values()) <= room or not droppable:
            return [FittedColumn(index=index, width=widths[index]) for index in shown]
        shown.remove(droppable[-1])


def _shrunk(columns: Sequence[Column[Any]], naturals: Sequence[int], shown: list[int], room: int) -> dict[int, int]:
    widths = {index: naturals[index] for index in shown}
    notes = [index for index in shown if columns[index].stretch]
    texts = [index for index in shown if columns[index].shrinks]
    for note_floor, text_floor in zip(_NOTE_FLOORS, _TEXT_FLOORS, strict=True):
        for places, floor in ((notes, note_floor), (texts, text_floor)):
            _cut(widths, places, floor, _total(widths.values()) - room)
    return widths


def _cut(widths: dict[int, int], places: list[int], floor: int, excess: int) -> None:
    """Take the excess from the widest of these columns, none below the floor."""
    for _ in range(excess):
        widest = max(places, key=lambda index: widths[index], default=None)
        if widest is None or widths[widest] <= floor:
            return
        widths[widest] -= 1


def _total(widths: Iterable[int]) -> int:
    listed = list(widths)
    return sum(listed) + GAP * (len(listed) - 1)


class FittedTable(Generic[T]):
    """A table for a rich console that fits itself to the console's width. Cells are text, never markup."""

    def __init__(self, rows: Sequence[T], columns: Sequence[Column[T]]) -> None:
        self._columns = columns
        self._rows = rows
        self._cells = [[one_line(column.text(row)) for column in columns] for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.cells import cell_len
        from rich.table import Table
        from rich.text import Text

        naturals = [
            max([len(column.title), *(cell_len(cells[index]) for cells in self._cells)])
            for index, column in enumerate(self._columns)
        ]
        shown = fitted(self._columns, naturals, options.max_width)
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
        for fit in shown:
            column = self._columns[fit.index]
            table.add_column(
                column.title,
                justify="right" if column.right else "left",
                no_wrap=True,
                overflow="ellipsis",
                min_width=fit.width,
                max_width=fit.width,
            )
        for row, cells in zip(self._rows, self._cells, strict=True):
            table.add_row(*(Text(cells[fit.index], style=self._style(fit, row)) for fit in shown))
        width = max(options.max_width, _total(fit.width for fit in shown) + GAP)
        yield from _wide(console, table, width)

    def _style(self, fit: FittedColumn, row: T) -> str:
        hue = self._columns[fit.index].hue
        return "" if hue is None else hue(row)


def _wide(console: Console, table: Any, width: int) -> Iterator[Any]:
    """Render at a width that may exceed the terminal's."""
    yield from console.render(table, console.options.update(width=width, max_width=width))
