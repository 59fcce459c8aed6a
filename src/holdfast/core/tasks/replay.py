"""Comparison of a replay with the recorded attempt: does the same code on the same input end the same way?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from holdfast.core.tasks.failure import Failure

_FRAME = re.compile(r'^[ |]*File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """How the original attempt ended. `output` is JSON."""

    attempt: int
    state: str
    code: str = ""
    type: str = ""
    message: str = ""
    traceback: str = ""
    output: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The recorded answer to an effect that a task sent: its receipt (JSON) if `done`, else how it was `refused`."""

    task_id: str
    effect: str
    user_key: str | None
    ordinal: int
    digest: bytes
    state: str
    receipt: bytes | None = None
    code: str = ""
    message: str = ""


class ReplayMatch(StrEnum):
    """How a replay compares with the recorded attempt."""

    SAME_FAILURE = "same_failure"
    OTHER_LINE = "other_line"
    OTHER_FAILURE = "other_failure"
    COMPLETES_NOW = "completes_now"
    FAILS_NOW = "fails_now"
    SAME_OUTPUT = "same_output"
    OTHER_OUTPUT = "other_output"
    NOTHING_RECORDED = "nothing_recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayComparison:
    likeness: ReplayMatch
    sentence: str


def compare(recorded: Recorded | None, failure: Failure | None, *, is_same_output: bool = False) -> ReplayComparison:
    """Compare a replay with the recorded attempt. `failure` None means that the replay completed."""
    if recorded is None or recorded.state in ("running", "canceled", "released", "lost"):
        state = (
            "no attempt has ended"
            if recorded is None
            else f"attempt {recorded.attempt} is on record as {recorded.state}"
        )
        return ReplayComparison(likeness=ReplayMatch.NOTHING_RECORDED, sentence=f"Nothing to compare with: {state}.")
    if recorded.state == "completed":
        return _compare_completed(recorded, failure, is_same_output=is_same_output)
    return _compare_failed(recorded, failure)


def _compare_completed(recorded: Recorded, failure: Failure | None, *, is_same_output: bool) -> ReplayComparison:
    then = f"Attempt {recorded.attempt} completed"
    if failure is not None:
        return ReplayComparison(
            likeness=ReplayMatch.FAILS_NOW, sentence=f"{then}; the replay failed with {_named(failure)}."
        )
    if is_same_output:
        return ReplayComparison(likeness=ReplayMatch.SAME_OUTPUT, sentence=f"{then} with the same output.")
    return ReplayComparison(likeness=ReplayMatch.OTHER_OUTPUT, sentence=f"{then} with another output.")


def _compare_failed(recorded: Recorded, failure: Failure | None) -> ReplayComparison:
    then = f"Attempt {recorded.attempt} failed with {recorded.type or recorded.code}"
    if failure is None:
        return ReplayComparison(likeness=ReplayMatch.COMPLETES_NOW, sentence=f"{then}; the replay completed.")
    if (recorded.type, recorded.code) != (failure.type, failure.code):
        return ReplayComparison(
            likeness=ReplayMatch.OTHER_FAILURE, sentence=f"{then}; the replay failed with {_named(failure)}."
        )
    place, now = place_of(recorded.traceback), place_of(failure.traceback)
    if place == now:
        where = f" at {place}" if place else ""
        return ReplayComparison(likeness=ReplayMatch.SAME_FAILURE, sentence=f"{then}{where}; so did the replay.")
    sentence = (
        f"{then} at {place or 'an unknown place'}; the replay failed the same way at {now or 'an unknown place'}."
    )
    return ReplayComparison(likeness=ReplayMatch.OTHER_LINE, sentence=sentence)


def _named(failure: Failure) -> str:
    return failure.type or failure.code


def place_of(traceback: str) -> str:
    """Return the innermost frame of a traceback as `file:line in function`, without folders, which differ by
    machine.
    """
    frames = list(_FRAME.finditer(traceback))
    if not frames:
        return ""
    last = frames[-1]
    name = re.split(r"[\\/]", last["file"])[-1]
    return f"{name}:{last['line']} in {last['function']}"
