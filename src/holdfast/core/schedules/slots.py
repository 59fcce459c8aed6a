"""Decisions about the slots of a schedule: fire, wait, skip or miss, each with its cause and a sentence.

Pure: the due slots, the state of the schedule and the time go in; decisions come out. Every slot gets one, so that a
user can always see why something did not run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from holdfast.core.explain.phrases import count_of
from holdfast.core.schedules.schedule import NEWEST_MAX, Due, Missed, Overlap
from holdfast.core.values.duration import human

LATE_SECONDS = 60.0
"""How late a slot may be and still count as on time."""


class SlotState(StrEnum):
    """The state of a slot."""

    FIRED = "fired"
    WAITING = "waiting"
    SKIPPED = "skipped"
    MISSED = "missed"


SLOT_CODES = {SlotState.FIRED: "f", SlotState.WAITING: "w", SlotState.SKIPPED: "k", SlotState.MISSED: "m"}
"""The codes stored in the database."""


class Cause(StrEnum):
    """Why a slot is in its state."""

    ON_TIME = "on_time"
    LATE = "late"
    BY_HAND = "by_hand"
    OVERLAP = "overlap"
    WAITING_FULL = "waiting_full"
    REPLACED = "replaced"
    PAUSED = "paused"
    NO_SCHEDULER = "no_scheduler"
    WAITED = "waited"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleState:
    """The state of a schedule when its slots are decided."""

    overlap: Overlap
    missed: Missed
    max_waiting: int
    busy_with: str | None
    """The firing that has not ended, for display: `task 17`."""
    waiting: tuple[datetime, ...] = ()
    """Slots that wait for it, oldest first."""
    paused: str | None = None
    """By whom and why, if the schedule is paused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotDecision:
    """The decision about one slot, or about consecutive slots from `first` on with the same result."""

    slot: datetime
    state: SlotState
    cause: Cause
    reason: str = ""
    count: int = 1
    first: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotDecisions:
    """Decisions in slot order, the waiting slot that fires now, and the slots that no longer wait."""

    verdicts: tuple[SlotDecision, ...] = ()
    released: datetime | None = None
    dropped: tuple[datetime, ...] = ()


REPLACED = "A newer slot replaced it before it started."


def judge(due: Due, schedule_state: ScheduleState, now: datetime) -> SlotDecisions:
    """Decide about the due slots, and release a waiting slot if its turn has come."""
    if schedule_state.paused is not None:
        verdicts = _alike(due, due.newest, SlotState.SKIPPED, Cause.PAUSED, schedule_state.paused)
        return SlotDecisions(verdicts=tuple(verdicts))
    chosen = _caught_up(due, schedule_state.missed, now)
    left = due.newest[: len(due.newest) - len(chosen)]
    verdicts = _alike(due, left, SlotState.MISSED, Cause.NO_SCHEDULER, _why_missed(schedule_state.missed, chosen))
    if chosen and _gives_way(schedule_state):
        return _replace(verdicts, chosen, schedule_state, now)
    released = schedule_state.waiting[0] if schedule_state.waiting and schedule_state.busy_with is None else None
    waiting = len(schedule_state.waiting) - (released is not None)
    busy_with = "the slot before it" if released is not None else schedule_state.busy_with
    for slot in chosen:
        verdict = _decide_slot(slot, schedule_state, busy_with, waiting, now)
        verdicts.append(verdict)
        if verdict.state is SlotState.WAITING:
            waiting += 1
        elif verdict.state is SlotState.FIRED:
            busy_with = "the slot before it"
    return SlotDecisions(verdicts=tuple(verdicts), released=released)


def decide_manual_slot(moment: datetime, schedule_state: ScheduleState, reason: str) -> SlotDecisions:
    """Decide about a firing that a person requests. A pause does not delay it; the previous firing does."""
    due = Due(older=None, newest=(moment,), upcoming=None)
    judged = judge(due, replace(schedule_state, paused=None), moment)
    [verdict] = judged.verdicts
    if verdict.state is SlotState.FIRED:
        verdict = replace(verdict, cause=Cause.BY_HAND, reason=reason)
    return replace(judged, verdicts=(verdict,))


def _caught_up(due: Due, missed: Missed, now: datetime) -> tuple[datetime, ...]:
    """Return the newest slots that may fire: those on time, and missed ones according to the schedule's policy."""
    on_time = tuple(slot for slot in due.newest if _lateness(slot, now) <= LATE_SECONDS)
    match missed:
        case Missed.ALL:
            return due.newest
        case Missed.LATEST:
            return on_time or due.newest[-1:]
        case Missed.SKIP:
            return on_time


def _gives_way(schedule_state: ScheduleState) -> bool:
    """Return whether the newest of several slots fires.

    With the overlap policy skip and nothing in its way, the newest slot is as good as the first and more recent, unless
    the schedule wants every missed slot.
    """
    if schedule_state.overlap is Overlap.SKIP:
        return (
            schedule_state.missed is not Missed.ALL and schedule_state.busy_with is None and not schedule_state.waiting
        )
    return schedule_state.overlap is Overlap.REPLACE


def _why_missed(missed: Missed, chosen: Sequence[datetime]) -> str:
    match missed:
        case Missed.SKIP if not chosen:
            return "No scheduler ran at the time, and missed slots are skipped."
        case Missed.ALL:
            return f"No scheduler ran at the time, and at most {NEWEST_MAX} slots are caught up with."
        case _:
            return "No scheduler ran at the time, and a newer slot had come when one did."


def _replace(
    verdicts: list[SlotDecision], chosen: Sequence[datetime], schedule_state: ScheduleState, now: datetime
) -> SlotDecisions:
    """Let the newest slot replace all before it; it starts when the running firing has ended."""
    *older, last = chosen
    verdicts += [_verdict(slot, SlotState.SKIPPED, Cause.REPLACED, REPLACED) for slot in older]
    verdicts.append(_decide_slot(last, schedule_state, schedule_state.busy_with, 0, now))
    return SlotDecisions(verdicts=tuple(verdicts), dropped=schedule_state.waiting)


def _decide_slot(
    slot: datetime, schedule_state: ScheduleState, busy_with: str | None, waiting: int, now: datetime
) -> SlotDecision:
    """Decide about a slot that may fire as far as its time is concerned."""
    if schedule_state.overlap is Overlap.ALLOW or (busy_with is None and not waiting):
        late = _lateness(slot, now)
        if late <= LATE_SECONDS:
            return _verdict(slot, SlotState.FIRED, Cause.ON_TIME, "")
        return _verdict(slot, SlotState.FIRED, Cause.LATE, f"Fired {human(late)} late: no scheduler ran at the time.")
    because = f"The previous firing ({busy_with}) is not over" if busy_with else "Earlier slots are waiting"
    if schedule_state.overlap is Overlap.SKIP:
        return _verdict(slot, SlotState.SKIPPED, Cause.OVERLAP, f"{because}.")
    if schedule_state.overlap is Overlap.QUEUE and waiting >= schedule_state.max_waiting:
        full = f"{count_of(waiting, 'slot')} {'waits' if waiting == 1 else 'wait'} already, which is the most allowed."
        return _verdict(slot, SlotState.SKIPPED, Cause.WAITING_FULL, full)
    return _verdict(slot, SlotState.WAITING, Cause.OVERLAP, f"{because}.")


def _alike(due: Due, slots: Sequence[datetime], state: SlotState, cause: Cause, reason: str) -> list[SlotDecision]:
    """Return the same decision for the slots counted together and for single ones."""
    together = []
    if due.older is not None:
        older = due.older
        together.append(
            SlotDecision(slot=older.last, first=older.first, count=older.count, state=state, cause=cause, reason=reason)
        )
    return together + [_verdict(slot, state, cause, reason) for slot in slots]


def _verdict(slot: datetime, state: SlotState, cause: Cause, reason: str) -> SlotDecision:
    return SlotDecision(slot=slot, state=state, cause=cause, reason=reason)


def _lateness(slot: datetime, now: datetime) -> float:
    return (now - slot).total_seconds()
