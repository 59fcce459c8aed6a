"""The fingerprint of a failure: the same for the same fault, whatever it happened to.

Three things make it: the exception's type, its message without what changes from one task to the next (ids, numbers,
quoted values, addresses, paths, times), and the innermost frame of the user's own code, without line numbers. What the
engine itself says about lost and late attempts names workers and times, so there the kind of end is enough.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from holdfast.core.outcome import Failed, Lost, TimedOut

FINGERPRINT_CHARACTERS = 16
MESSAGE_CHARACTERS_MAX = 2_000
"""Longer messages are told apart by their beginning."""

_CHANGING = (
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.I), "<uuid>"),
    (
        re.compile(
            r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?(?:Z\b|UTC\b|[+-]\d\d:?\d\d))?)?"
            r"|\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b"
        ),
        "<time>",
    ),
    (re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>)\]]+", re.I), "<url>"),
    (re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "<email>"),
    (
        re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b|(?<![\w:])\[?(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{1,4}\]?", re.I),
        "<ip>",
    ),
    (re.compile(r"(?<![\w'])'(?:[^'\\\n]|\\.)*'(?!\w)|\"(?:[^\"\\\n]|\\.)*\"|`[^`\n]*`"), "<quoted>"),
    (re.compile(r"(?<![\w<.])(?:[A-Za-z]:\\|\.{0,2}/|~/)[\w.@%+~\\/-]*[\w]"), "<path>"),
    (re.compile(r"\b0x[0-9a-f]+\b|\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b", re.I), "<hex>"),
    (re.compile(r"(?<!\w)[-+]?\d[\d_]*(?:[.,]\d+)*(?:e[-+]?\d+)?|\d+", re.I), "<n>"),
)
_SPACE = re.compile(r"\s+")
_FRAME = re.compile(r'^  File "(?P<file>[^"\n]*)", line \d+, in (?P<function>\S+)', re.MULTILINE)

_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]")
_STANDARD = re.compile(r"[\\/]lib(?:64)?[\\/]python\d+\.\d+[\\/]|[\\/]Lib[\\/](?:asyncio|concurrent|threading)|^<")
_ENGINE = re.compile(r"[\\/]holdfast[\\/](?:worker|dispatcher|core|client|store|testing)[\\/][\w]+\.py$")


def fingerprint(outcome: Failed | TimedOut | Lost) -> str:
    """Name the fault behind an attempt that did not complete."""
    failure = outcome.failure
    if isinstance(outcome, Lost):
        return _digest("lost", failure.code, "")
    if isinstance(outcome, TimedOut) and not failure.frames:
        return _digest("timed_out", failure.code, "")
    return _digest(failure.type or failure.code, normalised(failure.message), own_frame(failure.frames))


def fingerprint_on_record(*, state: str, code: str, type: str, message: str, traceback: str) -> str:
    """Name the fault behind a stored failure: `state` is the attempt's letter, frames are read from the traceback."""
    frames = frames_of(traceback)
    if state == "l":
        return _digest("lost", code, "")
    if state == "t" and not frames:
        return _digest("timed_out", code, "")
    return _digest(type or code, normalised(message), own_frame(frames))


def normalised(message: str) -> str:
    """The message without what changes from one task to the next."""
    text = message[:MESSAGE_CHARACTERS_MAX]
    for pattern, name in _CHANGING:
        text = pattern.sub(name, text)
    return _SPACE.sub(" ", text).strip()


def own_frame(frames: Sequence[str]) -> str:
    """The innermost frame of the user's own code as `file.py:function`, wherever that is installed.

    An app that is installed like a library has no frames of its own by their place: there the outermost one counts,
    which is the action itself.
    """
    foreign = ""
    for frame in reversed(frames):
        file = frame.rpartition(":")[0]
        if _ENGINE.search(file):
            continue
        if _INSTALLED.search(file):
            foreign = frame
        elif not _STANDARD.search(file):
            return _short(frame)
    return _short(foreign)


def frames_of(traceback: str) -> tuple[str, ...]:
    """The frames of a formatted traceback as `file:function`, innermost last; of a chain, those of the last part."""
    last = traceback.rpartition("Traceback (most recent call last):")[2]
    return tuple(f"{found['file']}:{found['function']}" for found in _FRAME.finditer(last))


def _short(frame: str) -> str:
    return re.split(r"[\\/]", frame)[-1]


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:FINGERPRINT_CHARACTERS]
