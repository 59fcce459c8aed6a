"""Phrases shared by explanations: ages, counts, workers and failures."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from holdfast.core.explain.evidence import FailureFacts, TaskFacts, WorkerFacts
from holdfast.core.values.duration import human

_LINE_CHARACTERS_MAX = 300


def what_happened(failure: FailureFacts | None) -> str:
    """Describe how an attempt ended and why: `failed: ValueError: no such order`."""
    if failure is None:
        return "failed"
    word = {"timed_out": "timed out", "lost": "was lost"}.get(failure.state, "failed")
    return f"{word}: {cause(failure)}"


def cause(failure: FailureFacts) -> str:
    """Return the exception and its message on one line."""
    name = failure.type.rpartition(".")[2] or failure.code
    message = one_line(failure.message).rstrip(".")
    return f"{name}: {message}" if message else name


def named(worker: WorkerFacts) -> str:
    return f"{worker.name} (version {worker.version})" if worker.version else worker.name


def fate(at: datetime, worker: WorkerFacts) -> str:
    """Describe what happened to a worker that is not live."""
    ended = worker.ended_at or worker.beat_at
    match worker.state:
        case "lost":
            return f"was lost {ago(at, ended)}"
        case "gone":
            return f"left {ago(at, ended)}"
        case "draining":
            return "is draining"
        case _:
            return f"last sent a heartbeat {ago(at, worker.beat_at)}"


def by_whom(facts: TaskFacts) -> str:
    return f" by {facts.actor}" if facts.actor else ""


def behind(facts: TaskFacts) -> str:
    """Describe how many tasks of the same action come first."""
    if not facts.ahead:
        return ", first in line"
    more = "+" if facts.ahead_is_more else ""
    return f", {facts.ahead}{more} {'task' if facts.ahead == 1 else 'tasks'} of {facts.action} ahead"


def ago(at: datetime, then: datetime) -> str:
    return f"{human(max(0.0, seconds_between(at, then)))} ago"


def seconds_between(later: datetime, earlier: datetime) -> float:
    return (later - earlier).total_seconds()


def clock(instant: datetime) -> str:
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC"


def count_of(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def and_more(names: Sequence[str], most: int, *, total: int | None = None) -> str:
    """List the first names and the number of the others: `a, b and 3 more`."""
    shown = list(names[:most])
    rest = (len(names) if total is None else total) - len(shown)
    return f"{', '.join(shown)} and {rest} more" if rest > 0 else ", ".join(shown)


def one_line(text: str) -> str:
    """Return the text on one line, cut to a readable length."""
    line = " ".join(text.split())
    return line if len(line) <= _LINE_CHARACTERS_MAX else f"{line[: _LINE_CHARACTERS_MAX - 1]}…"


def full_stop(text: str) -> str:
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."
