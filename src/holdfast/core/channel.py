"""The lines between two layers of a text drawing: which column each vertical takes, so that no two lines seem one.

Every source has one vertical. A source's line and another source's way to a target may share a row; then the first
must turn off before the second joins, which orders their columns. Where that order is a circle, one source leaves its
box a row lower, where nothing arrives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """One source's lines: from row `start` to a vertical in `column`, then to `ends`. Straight ones have no column."""

    item: int
    start: int
    ends: tuple[int, ...]
    column: int | None
    is_lowered: bool

    @property
    def span(self) -> tuple[int, int]:
        rows = (self.start, *self.ends)
        return min(rows), max(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """All wires between two layers, and how many columns they take."""

    wires: tuple[Wire, ...]
    columns: int


def routed(sources: Sequence[tuple[int, int, tuple[int, ...]]]) -> Channel:
    """Route (item, row, rows of its targets); rows of sources differ, and so do rows of targets."""
    wires = [Wire(item=item, start=start, ends=ends, column=None, is_lowered=False) for item, start, ends in sources]
    straight = [wire for wire in wires if set(wire.ends) == {wire.start}]
    turning = {wire.start: wire for wire in wires if set(wire.ends) != {wire.start}}
    order, lowered = _ordered(turning)
    taken: list[list[tuple[int, int]]] = []
    column_of: dict[int, int] = {}
    done: list[Wire] = []
    for start in order:
        wire = turning[start]
        if start in lowered:
            wire = Wire(item=wire.item, start=start + 1, ends=wire.ends, column=None, is_lowered=True)
        firsts = [column_of[end] for end in wire.ends if end != start and end in column_of and end not in lowered]
        column = _free_column(taken, wire.span, after=max(firsts, default=-1))
        column_of[start] = column
        done.append(Wire(item=wire.item, start=wire.start, ends=wire.ends, column=column, is_lowered=wire.is_lowered))
    return Channel(wires=(*straight, *done), columns=len(taken))


def _ordered(turning: Mapping[int, Wire]) -> tuple[list[int], set[int]]:
    """Order sources, named by their row, so that each comes after those whose row it arrives on."""
    left = {start: {end for end in wire.ends if end != start and end in turning} for start, wire in turning.items()}
    order: list[int] = []
    lowered: set[int] = set()
    while left:
        free = sorted(start for start, firsts in left.items() if not firsts)
        if not free:
            # A circle: the topmost source on it leaves a row lower, so nobody needs to come after it.
            lowest = min(row for firsts in left.values() for row in firsts)
            lowered.add(lowest)
            for firsts in left.values():
                firsts.discard(lowest)
            continue
        for start in free:
            del left[start]
            order.append(start)
        for firsts in left.values():
            firsts.difference_update(free)
    return order, lowered


def _free_column(taken: list[list[tuple[int, int]]], span: tuple[int, int], *, after: int) -> int:
    for column in range(after + 1, len(taken)):
        if all(span[1] < low or span[0] > high for low, high in taken[column]):
            taken[column].append(span)
            return column
    taken.extend([] for _ in range(max(0, after + 2 - len(taken) - 1)))
    taken.append([span])
    return len(taken) - 1
