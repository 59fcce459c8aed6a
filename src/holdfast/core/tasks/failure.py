"""The recorded cause of an attempt that did not complete.

A `Failure` can always be stored: its text is limited in length, free of NUL and encodable, whatever user code raised.
Converting an exception into a `Failure` never raises and never keeps the exception or its frames alive.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from traceback import TracebackException
from typing import Any

from holdfast.core.effects.effect import causing_effect
from holdfast.core.tasks.exception_codes import library_code, read
from holdfast.core.tasks.retry_after import http_date, requested_delay
from holdfast.core.tasks.signals import Fatal, Retry
from holdfast.errors import Invalid

EXCEPTION_CODE = "DAG_TASK_EXECUTION_EXCEPTION"
TIMEOUT_CODE = "DAG_TASK_EXECUTION_TIMEOUT"
LOST_CODE = "DAG_TASK_EXECUTION_LOST"
FAILED_CODE = "DAG_TASK_EXECUTION_FAILED"
INPUT_CODE = "DAG_VALIDATION_INPUT_INVALID"

CODE_BYTES_MAX = 128
EFFECT_BYTES_MAX = 256
TYPE_BYTES_MAX = 512
MESSAGE_BYTES_MAX = 8 * 1024
TRACEBACK_BYTES_MAX = 64 * 1024
FRAMES_MAX = 50
BASES_MAX = 20

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_CODE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


class FailureReport(StrEnum):
    """What the action itself requested by raising `Retry` or `Fatal`."""

    RETRY = "retry"
    FATAL = "fatal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The reason why an attempt ended without an output.

    `type` and `bases` are qualified class names, the nearest base first. `frames` are `file:function`, innermost last.
    `retry_after` is the minimum delay that the failing side requested. `effect` is the key of the effect whose failure
    ended the attempt.
    """

    code: str
    message: str
    type: str = ""
    traceback: str = ""
    retry_after: timedelta | None = None
    said: FailureReport | None = None
    bases: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()
    effect: str = ""

    def __post_init__(self) -> None:
        for name, bytes_max in _TEXT_LIMITS.items():
            object.__setattr__(self, name, storable_text(getattr(self, name), bytes_max))
        bases = tuple(storable_text(base, TYPE_BYTES_MAX) for base in self.bases[:BASES_MAX])
        frames = tuple(storable_text(frame, TYPE_BYTES_MAX) for frame in self.frames[-FRAMES_MAX:])
        object.__setattr__(self, "bases", bases)
        object.__setattr__(self, "frames", frames)


_TEXT_LIMITS: Mapping[str, int] = {
    "code": CODE_BYTES_MAX,
    "message": MESSAGE_BYTES_MAX,
    "type": TYPE_BYTES_MAX,
    "traceback": TRACEBACK_BYTES_MAX,
    "effect": EFFECT_BYTES_MAX,
}


def storable_text(text: str, bytes_max: int) -> str:
    """Return text that PostgreSQL accepts, at most `bytes_max` bytes in UTF-8, with its head and tail preserved."""
    if len(text) > 2 * bytes_max:
        text = f"{text[:bytes_max]}{text[-bytes_max:]}"
    cleaned = _UNSTORABLE.sub("\ufffd", text)
    encoded = cleaned.encode()
    if len(encoded) <= bytes_max:
        return cleaned
    mark = b"\n[...]\n" if bytes_max >= 64 else b""
    kept = bytes_max - len(mark)
    tail = kept // 2 if mark else 0
    head = encoded[: kept - tail].decode(errors="ignore")
    return head + mark.decode() + encoded[len(encoded) - tail :].decode(errors="ignore")


def failure_of(error: BaseException, *, now: datetime | None = None) -> Failure:
    """Convert an exception of user code into data. Never raises, whatever the exception does.

    `now` is needed only for a Retry-After date in a response that has no Date header.
    """
    trace = TracebackException.from_exception(error, compact=True)
    said, retry_after = _requested_by(error, now)
    return Failure(
        code=_code_of(error),
        message=str(trace),
        type=full_name(type(error)),
        traceback="".join(trace.format()),
        retry_after=retry_after,
        said=said,
        bases=tuple(full_name(base) for base in type(error).__mro__[1:-1]),
        frames=tuple(f"{frame.filename}:{frame.name}" for frame in trace.stack[-FRAMES_MAX:]),
        effect=causing_effect(error),
    )


def input_failure(action: str, error: BaseException) -> Failure:
    """Describe why an action cannot start: its input is invalid, or a parameter type raised on it.

    Retrying cannot help.
    """
    if isinstance(error, Invalid):
        why, traceback = f"{error.detail} {error.advice}".strip(), ""
    else:
        found = failure_of(error)
        why, traceback = f"{found.type}: {found.message}", found.traceback
    return Failure(code=INPUT_CODE, message=f"Invalid parameters for {action}: {why}", traceback=traceback)


def _requested_by(error: BaseException, now: datetime | None) -> tuple[FailureReport | None, timedelta | None]:
    match error:
        case Retry():
            return FailureReport.RETRY, error.after
        case Fatal():
            return FailureReport.FATAL, None
        case _:
            return None, _retry_after_of(error, now)


def _code_of(error: BaseException) -> str:
    """Return the code that the exception carries, else the one derived from its library's attributes."""
    code = None if _names_no_failure(error) else read(error, "code")
    if isinstance(code, str) and _CODE.fullmatch(code):
        return code
    return library_code(error) or EXCEPTION_CODE


def _names_no_failure(error: BaseException) -> bool:
    """Return whether `code` is not an error code: an exit status, a SQLAlchemy manual page, aiohttp's old `status`."""
    return isinstance(error, SystemExit) or type(error).__module__.partition(".")[0] in ("sqlalchemy", "aiohttp")


def full_name(kind: type) -> str:
    """Return the class name that failures record: with its module, unless it is a builtin."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _retry_after_of(error: BaseException, now: datetime | None) -> timedelta | None:
    """Find Retry-After on the error itself or in the headers of its HTTP response."""
    own = read(error, "retry_after")
    if own is not None:
        return requested_delay(own, sent_at=now)
    for holder in (error, read(error, "response")):
        headers = read(holder, "headers")
        if (delay := _header(headers, "Retry-After")) is not None:
            sent_at = http_date(_header(headers, "Date"))
            return requested_delay(delay, sent_at=sent_at or now)
    return None


def _header(headers: Any, name: str) -> Any:
    get = read(headers, "get")
    try:
        return (get(name) or get(name.lower())) if callable(get) else None
    except Exception:  # noqa: BLE001 - a foreign mapping may raise anything
        return None
