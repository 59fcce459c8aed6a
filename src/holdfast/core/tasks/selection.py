"""Which queued tasks a worker takes next: strict priority, fair between lanes, nobody starved.

A plan names lanes and priorities, never single tasks; SQL takes what is there, perhaps less than planned,
and the caller then plans again with fresh heads. Slots are numbered through all plans: every 8th goes to an
oldest head, whatever its priority, and the others go round the lanes of the best priority.

Ids of plain tasks and ids of nodes are counted apart: which of two tasks is older can be told among plain tasks and
among nodes only. So the oldest plain task and the oldest node take turns, and so do the two heads of a lane with both.
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
"""Queued tasks whose ids tell their order: those of one lane and priority, either plain ones or nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneHead:
    """The oldest queued task of a row. Task id 0: work is expected there, nobody looked."""

    lane_id: int
    priority: int
    task_id: int
    is_node: bool = False

    @property
    def row(self) -> Row:
        return self.lane_id, self.priority, self.is_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """Take up to `count` queued tasks of one lane and priority, beginning at task id `floor`."""

    lane_id: int
    priority: int
    floor: int
    count: int
    is_node: bool = False

    @property
    def row(self) -> Row:
        return self.lane_id, self.priority, self.is_node


Gate: TypeAlias = tuple[str, int]
"""What may hold a lane back: `("queue", id)` and `("tenant", id)` by their limits, `("breaker", id)` by the trials of a
half-open breaker."""


def plan(heads: Sequence[LaneHead], want: int, *, slot: int) -> list[Take]:
    """Deal `want` slots to the heads, best priority first.

    `slot` is the number of the first of them. A claimer counts on from plan to plan, so that small plans are as
    fair as large ones, whatever their sizes.
    """
    if want <= 0 or not heads:
        return []
    if len(heads) == 1:
        return [_take(heads[0], want)]
    return _takes(_deal_slots(_best(heads), _oldest(heads), want, slot=slot))


def plan_within(
    heads: Sequence[LaneHead], want: int, *, slot: int, gates: Mapping[int, Sequence[Gate]], rooms: Mapping[Gate, int]
) -> list[Take]:
    """The same, cut to the room that the gates of the lanes have. A lane without gates is not cut.

    Dealt one by one: where there is room for few, it goes to those whose slots come first, so it goes round too.
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
    """The rows that gave less than was asked of them; `taken` counts what was found by its own row.

    A take goes on into the next row where its own ends, so first both are added up: nothing is missing from a lane
    and priority that gave as much as was asked of it.
    """
    asked: Counter[Row] = Counter()
    lacking: Counter[tuple[int, int]] = Counter()
    for take in takes:
        asked[take.row] += take.count
        lacking[take.row[:2]] += take.count
    for row, count in taken.items():
        lacking[row[:2]] -= count
    return {row for row, count in asked.items() if lacking[row[:2]] > 0 and taken.get(row, 0) < count}


def _best(heads: Sequence[LaneHead]) -> list[list[LaneHead]]:
    """The heads of the best priority, by lane."""
    best = min((head.priority for head in heads), default=0)
    ordered = sorted((head for head in heads if head.priority == best), key=attrgetter("lane_id", "is_node"))
    return [list(lane) for _, lane in groupby(ordered, key=attrgetter("lane_id"))]


def _oldest(heads: Sequence[LaneHead]) -> list[LaneHead]:
    """The oldest plain task and the oldest node. How old it is what nobody saw is not known: it is passed over."""
    seen = [head for head in heads if head.task_id] or heads
    kinds = ([head for head in seen if head.is_node is is_node] for is_node in (False, True))
    return [min(kind, key=attrgetter("task_id", "priority", "lane_id")) for kind in kinds if kind]


def _deal_slots(best: list[list[LaneHead]], oldest: list[LaneHead], want: int, *, slot: int) -> Counter[LaneHead]:
    """How many of the `want` slots from number `slot` on are each head's."""
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
    """Deal slots one by one round the places, without looping over slots: each place's count, and which of its own
    turns is the first of them. `start` is the number of the first slot."""
    each, left = divmod(slots, len(places))
    for number in range(start, start + min(slots, len(places))):
        turn, index = divmod(number, len(places))
        yield places[index], each + (number - start < left), turn


def _takes(counts: Mapping[LaneHead, int]) -> list[Take]:
    return sorted((_take(head, count) for head, count in counts.items()), key=attrgetter("priority"))


def _take(head: LaneHead, count: int) -> Take:
    return Take(lane_id=head.lane_id, priority=head.priority, floor=head.task_id, count=count, is_node=head.is_node)
