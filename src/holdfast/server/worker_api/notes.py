"""Notes of remote attempts: log lines and progress, and any other event as a log line.

An event that is malformed never costs an attempt its result; only an event that is too large is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.codec import json_codec

NOTE_BYTES_MAX = 16 * 1024
EVENTS_MAX = 1_000


def notes_of(events: Iterable[Any] | None) -> Iterator[tuple[str, str]]:
    """Yield events as notes: kind and JSON. Null events are skipped."""
    for event in events or ():
        if event is not None:
            kind, detail = _note(event)
            yield kind, json_codec.encode(detail, bytes_max=NOTE_BYTES_MAX, what="note").decode()


def _note(event: Any) -> tuple[str, dict[str, Any]]:
    match event:
        case {"kind": "log", "detail": dict(detail)}:
            return "log", detail
        case {"kind": "progress", "detail": dict(detail)} if _is_progress(detail):
            return "progress", detail
        case dict():
            return "log", event
        case _:
            return "log", {"message": event}


def _is_progress(detail: dict[str, Any]) -> bool:
    """Return whether `done` and `total`, where present, are numbers."""
    amounts = [detail[name] for name in ("done", "total") if name in detail]
    return all(isinstance(amount, int | float) and not isinstance(amount, bool) for amount in amounts)
