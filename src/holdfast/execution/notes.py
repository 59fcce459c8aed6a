"""Notes of running attempts (log lines and progress), collected until the worker's next exchange.

The buffer is bounded: of progress only the latest note of an attempt is kept, and log lines beyond a limit are dropped
and counted. Notes never delay a result: a note that cannot be stored is dropped too.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from holdfast.codec import json_codec
from holdfast.core.tasks.failure import storable_text
from holdfast.engine.leases import Claimed
from holdfast.errors import Invalid

log = logging.getLogger("holdfast.worker")

LINES_MAX = 10_000
BATCH_MAX = 1_000
NOTE_BYTES_MAX = 16 * 1024
PROGRESS = "progress"


class Note(msgspec.Struct, frozen=True):
    claimed: Claimed
    kind: str
    detail: str

    @property
    def speaker(self) -> tuple[int, int]:
        """The attempt that made the note.

        The lease token does not identify it: one claim takes many tasks under one token.
        """
        return (self.claimed.task_id, self.claimed.attempt)


class Notes:
    """The buffer of notes. Call `add` from any thread, `store` from the worker's loop."""

    def __init__(self) -> None:
        self._lines: deque[Note] = deque()
        self._progress: dict[tuple[int, int], Note] = {}
        self._dropped = 0
        self._lock = threading.Lock()
        self._is_storing = False

    def __bool__(self) -> bool:
        """Whether there are notes that are not stored yet."""
        return bool(self._lines or self._progress or self._is_storing)

    def add(self, claimed: Claimed, kind: str, detail: dict[str, Any]) -> None:
        note = Note(claimed, kind, encoded_note(detail))
        with self._lock:
            if kind == PROGRESS:
                self._progress[note.speaker] = note
            elif len(self._lines) < LINES_MAX:
                self._lines.append(note)
            else:
                self._dropped += 1

    async def store(self, keep: Callable[[list[Note]], Awaitable[None]]) -> None:
        """Pass all notes so far to `keep`, before their attempts are settled."""
        while batch := self._take():
            self._is_storing = True
            try:
                await keep(batch)
            except BaseException:
                self._put_back(batch)
                raise
            finally:
                self._is_storing = False
        if self._dropped:
            log.warning("%s log lines of attempts were dropped: too many at once", self._dropped)
            self._dropped = 0

    def _take(self) -> list[Note]:
        with self._lock:
            batch = [self._lines.popleft() for _ in range(min(BATCH_MAX, len(self._lines)))]
            if len(batch) < BATCH_MAX:
                batch += self._progress.values()
                self._progress.clear()
        return batch

    def _put_back(self, batch: list[Note]) -> None:
        with self._lock:
            for note in reversed(batch):
                if note.kind == PROGRESS:
                    self._progress.setdefault(note.speaker, note)
                else:
                    self._lines.appendleft(note)


def encoded_note(detail: dict[str, Any]) -> str:
    """Encode a note as JSON. If JSON cannot represent it, keep its message and the reason."""
    try:
        return json_codec.encode(detail, bytes_max=NOTE_BYTES_MAX, what="note").decode()
    except Invalid as error:
        plain = {"message": storable_text(str(detail.get("message", "")), NOTE_BYTES_MAX // 4), "left_out": str(error)}
        return json_codec.encode(plain, bytes_max=NOTE_BYTES_MAX, what="note").decode()


def columns(notes: list[Note]) -> tuple[list[Any], ...]:
    """Return notes as the column arrays that the `add_notes` statement takes."""
    return (
        [note.claimed.task_id for note in notes],
        [note.claimed.attempt for note in notes],
        [note.claimed.lease_token for note in notes],
        [note.kind for note in notes],
        [note.detail for note in notes],
    )
