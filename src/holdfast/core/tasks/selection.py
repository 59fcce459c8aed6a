"""Selection of the queued tasks that a worker claims next: strict priority, fair between lanes, without starvation.

A plan names lanes and priorities, never single tasks. SQL claims the rows it finds, which may be fewer than planned,
and the caller then plans again with fresh heads. Slots are numbered across plans: every 8th goes to an oldest head
regardless of its priority, and the others rotate over the lanes of the best priority.

Ids of plain tasks and ids of nodes come from separate sequences. Ids therefore give the age order among plain tasks or
among nodes, but not between the two. So the oldest plain task and the oldest node alternate, and so do the two heads of
a lane that has both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TypeAlias, TypeVar

AGED_SLOT_EVERY = 8

Place = TypeVar("Place")


Row: TypeAlias = tuple[int, int, bool]
"""Queued tasks whose ids give their age order: those of one lane and priority, either plain tasks or nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneHead:
    """The oldest queued task of a row. Task id 0 means that work is expected but its id was not read."""

    lane_id: int
    priority: int
    task_id: int
    is_node: bool = False

    @property
    def row(self) -> Row:
        return self.lane_id, self.priority, self.is_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """Take up to `count` queued tasks of one lane and priority, starting at task id `floor`."""

    lane_id: int
    priority: int
    floor: int
    count: int
    is_node: bool = False

    @property
    def row(self) -> Row:
        return self.lane_id, self.priority, self.is_node


Gate: TypeAlias = tuple[str, int]
"""A limit that may close a lane: `("queue", id)` and `("tenant", id)` by their limits, `("breaker", id)` by the trials
of a half-open breaker."""


def plan(heads: Sequence[LaneHead], want: int, *, slot: int) -> list[Take]:
    """Distribute `want` slots over the heads, best priority first.

    `slot` is the number of the first slot. A claimer continues the numbering from plan to plan, so that small plans are
    as fair as large ones.
    """
    if want <= 0 or not heads:
        return []
    if len(heads) == 1:
        return [_take(heads[0], want)]
    return _takes(_deal_slots(_best(heads), _oldest(heads), want, slot=slot))


def plan_within(
    heads: Sequence[LaneHead], want: int, *, slot: int, gates: Mapping[int, Sequence[Gate]], rooms: Mapping[Gate, int]
) -> list[Take]:
    """Plan like `plan`, cut to the remaining room of the gates. A lane without gates is not cut.

    Slots are dealt one by one. Scarce room therefore goes to the heads whose slots come first, and it rotates too.
    """
    left, counts = dict(rooms), Counter[LaneHead]()
    best, oldest = _best(heads), _oldest(heads)
    for number in range(slot, slot + want) if heads else ():
        (head,) = _deal_slots(best, oldest, 1, slot=number)
        closing = gates.get(head.lane_id, ())
        if all(left[gate] > 0 for gate in closing):
            counts[head] += 1
            for gate in closing:
                left[gate] -= 1
    return _takes(counts)


def short_of(takes: Sequence[Take], taken: Mapping[Row, int]) -> set[Row]:
    """Return the rows that gave fewer tasks than requested; `taken` counts the claimed tasks by their own row.

    A take continues into the next row where its own ends. So the counts are first compared per lane and priority: where
    those sum up, no row is short.
    """
    requested: Counter[Row] = Counter()
    lacking: Counter[tuple[int, int]] = Counter()
    for take in takes:
        requested[take.row] += take.count
        lacking[take.row[:2]] += take.count
    for row, count in taken.items():
        lacking[row[:2]] -= count
    return {row for row, count in requested.items() if lacking[row[:2]] > 0 and taken.get(row, 0) < count}


def _best(heads: Sequence[LaneHead]) -> list[list[LaneHead]]:
    """Return the heads of the best priority, grouped by lane."""
    best = min((head.priority for head in heads), default=0)
    ordered = sorted((head for head in heads if head.priority == best), key=attrgetter("lane_id", "is_node"))
    return [list(lane) for _, lane in groupby(ordered, key=attrgetter("lane_id"))]


def _oldest(heads: Sequence[LaneHead]) -> list[LaneHead]:
    """Return the oldest plain task and the oldest node.

    Heads with unknown id are skipped unless there are no others.
    """
    seen = [head for head in heads if head.task_id] or heads
    kinds = ([head for head in seen if head.is_node is is_node] for is_node in (False, True))
    return [min(kind, key=attrgetter("task_id", "priority", "lane_id")) for kind in kinds if kind]


def _deal_slots(best: list[list[LaneHead]], oldest: list[LaneHead], want: int, *, slot: int) -> Counter[LaneHead]:
    """Count how many of the `want` slots starting at number `slot` each head gets."""
    aged_before = slot // AGED_SLOT_EVERY
    aged = (slot + want) // AGED_SLOT_EVERY - aged_before
    counts: Counter[LaneHead] = Counter()
    for lane, slots, turn in _deal(best, want - aged, start=slot - aged_before):
        for head, count, _ in _deal(lane, slots, start=turn):
            counts[head] += count
    for head, count, _ in _deal(oldest, aged, start=aged_before):
        counts[head] += count
    return counts


def _deal(places: Sequence[Place], slots: int, *, start: int) -> Iterable[tuple[Place, int, int]]:
    """Deal slots round-robin over the items without looping over slots.

    Yield each item, its count, and the number of its own first turn. `start` is the number of the first slot.
    """
    each, left = divmod(slots, len(places))
    for number in range(start, start + min(slots, len(places))):
        turn, index = divmod(number, len(places))
        yield places[index], each + (number - start < left), turn


def _takes(counts: Mapping[LaneHead, int]) -> list[Take]:
    return sorted((_take(head, count) for head, count in counts.items()), key=attrgetter("priority"))


def _take(head: LaneHead, count: int) -> Take:
    return Take(lane_id=head.lane_id, priority=head.priority, floor=head.task_id, count=count, is_node=head.is_node)
