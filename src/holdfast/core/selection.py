"""Which queued tasks a worker takes next: strict priority, fair between lanes, nobody starved.

A plan names lanes and priorities, never single tasks; SQL takes what is there, perhaps less than planned,
and the caller then plans again with fresh heads. Slots are numbered through all turns: every 8th goes to the
oldest head of all, whatever its priority, and the others go round the lanes of the best priority.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TypeAlias

AGED_SLOT_EVERY = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The oldest queued task of one lane and priority."""

    lane_id: int
    priority: int
    task_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """Take up to `count` queued tasks of one lane and priority, beginning at task id `floor`."""

    lane_id: int
    priority: int
    floor: int
    count: int


Gate: TypeAlias = tuple[str, int]
"""What may hold a lane back: `("queue", id)` and `("tenant", id)` by their limits, `("breaker", id)` by the trials of a
half-open breaker."""


def plan(heads: Sequence[Head], want: int, *, turn: int) -> list[Take]:
    """Spread `want` slots over the heads, best priority first.

    `turn` grows by one with every plan of the same claimer; it carries the round over the lanes and the
    count of slots from one plan to the next, so that small plans are as fair as large ones.
    """
    if want <= 0 or not heads:
        return []
    if len(heads) == 1:
        return [_take(heads[0], want)]
    first_slot = turn * want
    aged_before = first_slot // AGED_SLOT_EVERY
    aged = (first_slot + want) // AGED_SLOT_EVERY - aged_before
    counts = _round(_best(heads), want - aged, start=first_slot - aged_before)
    if aged:
        oldest = min(heads, key=attrgetter("task_id", "priority", "lane_id"))
        counts[oldest] = counts.get(oldest, 0) + aged
    takes = [_take(head, count) for head, count in counts.items()]
    return sorted(takes, key=attrgetter("priority"))


def within(takes: Sequence[Take], gates: Mapping[int, Sequence[Gate]], rooms: Mapping[Gate, int]) -> list[Take]:
    """Cut a plan to the room that the gates of its lanes have. A lane without gates is not cut."""
    left = dict(rooms)
    allowed = []
    for take in takes:
        closing = gates.get(take.lane_id, ())
        count = min([take.count, *(left[gate] for gate in closing)])
        if count > 0:
            allowed.append(replace(take, count=count))
            for gate in closing:
                left[gate] -= count
    return allowed


def _best(heads: Sequence[Head]) -> list[Head]:
    best = min(head.priority for head in heads)
    return sorted((head for head in heads if head.priority == best), key=attrgetter("lane_id"))


def _round(heads: list[Head], slots: int, *, start: int) -> dict[Head, int]:
    """Deal slots one by one round the heads, beginning at `start`, without looping over slots."""
    each, left = divmod(slots, len(heads))
    begin = start % len(heads)
    rotated = heads[begin:] + heads[:begin]
    dealt = {head: each + (index < left) for index, head in enumerate(rotated)}
    return {head: count for head, count in dealt.items() if count}


def _take(head: Head, count: int) -> Take:
    return Take(lane_id=head.lane_id, priority=head.priority, floor=head.task_id, count=count)
