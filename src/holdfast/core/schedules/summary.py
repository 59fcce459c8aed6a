"""One-sentence summary of a schedule: the next firing, how the last one ended, and what was skipped.

Pure: facts in, words out. The command line and every other view of schedules use the same words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from holdfast.core.explain.phrases import count_of, full_stop, one_line
from holdfast.core.schedules.slots import LATE_SECONDS, Cause
from holdfast.core.values.duration import human

_PASSED_OVER = {
    Cause.OVERLAP: "skipped because the previous firing still ran",
    Cause.WAITING_FULL: "skipped because too many waited already",
    Cause.REPLACED: "replaced by newer ones before they started",
    Cause.PAUSED: "skipped because the schedule was paused",
    Cause.NO_SCHEDULER: "missed while no scheduler ran",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFacts:
    """What is known about a schedule at one moment."""

    at: datetime
    next_at: datetime | None
    paused_by: str | None = None
    paused_reason: str | None = None
    trouble: str | None = None
    last_outcome: str | None = None
    """The state of the last firing; None if there was none, or its task was deleted."""
    has_fired: bool = False
    waiting: int = 0
    passed_over: Mapping[str, int] = field(default_factory=dict)
    """Slots of the last day that did not fire, by cause."""


def describe(facts: ScheduleFacts) -> str:
    """Describe the state of the schedule in one sentence."""
    parts = [_next(facts), _last(facts)]
    if facts.waiting:
        parts.append(f"{count_of(facts.waiting, 'slot')} {'waits' if facts.waiting == 1 else 'wait'} for it")
    parts += [
        f"{count_of(facts.passed_over[cause], 'slot')} {words}"
        for cause, words in _PASSED_OVER.items()
        if facts.passed_over.get(cause)
    ]
    return f"{'; '.join(parts)}."


def _next(facts: ScheduleFacts) -> str:
    if facts.paused_by is not None:
        reason = f": {one_line(facts.paused_reason)}" if facts.paused_reason else ""
        return f"Paused by {facts.paused_by}{reason}"
    if facts.trouble is not None:
        return f"Cannot fire: {full_stop(one_line(facts.trouble)).rstrip('.')}"
    if facts.next_at is None:
        return "Never fires again"
    seconds = (facts.next_at - facts.at).total_seconds()
    if seconds >= 0:
        return f"Next fires in {human(seconds)}"
    if -seconds <= LATE_SECONDS:
        return "Fires now"
    return f"Should have fired {human(-seconds)} ago: does any worker or server run"


def _last(facts: ScheduleFacts) -> str:
    if not facts.has_fired:
        return "has not fired yet"
    match facts.last_outcome:
        case None:
            return "the last firing is no longer on record"
        case "completed" | "failed":
            return f"the last firing {facts.last_outcome}"
        case "canceled":
            return "the last firing was canceled"
        case outcome:
            return f"the last firing is {outcome}"
