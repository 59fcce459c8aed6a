"""Routing of lines between two layers of a text drawing: assigns columns so that no two lines look like one.

Sources with the same targets share one wire and one vertical. A wire's own row and another wire's arrival at a target
may fall on the same row; then the first must turn off before the second joins, which orders their columns. If that
order is circular, one source leaves its box a row lower, where no line arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class ChannelLine:
    """The lines of some sources: from their rows to a vertical in `column`, then to the rows `ends`.

    `starts` has the row of each source. A wire that only goes straight on has no column.
    """

    starts: dict[int, int]
    ends: tuple[int, ...]
    column: int | None = None
    lowered: set[int] = field(default_factory=set)

    @property
    def span(self) -> tuple[int, int]:
        rows = (*self.starts.values(), *self.ends)
        return min(rows), max(rows)

    @property
    def is_straight(self) -> bool:
        return set(self.starts.values()) == set(self.ends) and len(self.starts) == 1

    def lower(self, row: int) -> None:
        item = next(item for item, start in self.starts.items() if start == row)
        self.starts[item] = row + 1
        self.lowered.add(item)


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """All wires between two layers, and how many columns they need."""

    wires: tuple[ChannelLine, ...]
    columns: int


def routed(sources: Sequence[tuple[int, int, tuple[int, ...]]]) -> Channel:
    """Route (item, row, rows of its targets); rows of sources differ, and so do rows of targets."""
    wires: dict[frozenset[int], ChannelLine] = {}
    for item, start, ends in sources:
        wires.setdefault(frozenset(ends), ChannelLine(starts={}, ends=tuple(sorted(ends)))).starts[item] = start
    turning = [wire for wire in wires.values() if not wire.is_straight]
    taken: list[list[tuple[int, int]]] = []
    for wire, firsts in _ordered(turning):
        after = max((first.column for first in firsts if first.column is not None), default=-1)
        wire.column = _free_column(taken, wire.span, after=after)
    return Channel(wires=tuple(wires.values()), columns=len(taken))


def _ordered(wires: Sequence[ChannelLine]) -> list[tuple[ChannelLine, list[ChannelLine]]]:
    """Order each wire after the wires on whose rows it arrives; return it with those."""
    at_row = {row: index for index, wire in enumerate(wires) for row in wire.starts.values()}
    waits = {index: {row for row in wire.ends if at_row.get(row, index) != index} for index, wire in enumerate(wires)}
    left = {index: set(rows) for index, rows in waits.items()}
    order: list[int] = []
    while left:
        free = [index for index, rows in left.items() if not rows]
        if not free:
            # A circular order: one source on it leaves a row lower, so no wire needs to come after it.
            row = min(row for rows in left.values() for row in rows)
            wires[at_row[row]].lower(row)
            for rows in (*left.values(), *waits.values()):
                rows.discard(row)
            continue
        order += free
        passed = {row for index in free for row in at_row if at_row[row] == index}
        left = {index: rows - passed for index, rows in left.items() if rows}
    return [(wires[index], [wires[at_row[row]] for row in waits[index]]) for index in order]


def _free_column(taken: list[list[tuple[int, int]]], span: tuple[int, int], *, after: int) -> int:
    """Return the first column after `after` in which no other wire covers these rows."""
    column = after + 1
    while column < len(taken) and any(span[0] <= high and low <= span[1] for low, high in taken[column]):
        column += 1
    if column == len(taken):
        taken.append([])
    taken[column].append(span)
    return column
