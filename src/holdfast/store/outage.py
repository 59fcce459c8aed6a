"""Trouble in the log: one line when it begins and one when it ends, with how long it took.

Everything in a process that asks the same database shares one of these. An outage (nothing answers) is one for all:
what else fails while it lasts is told at level DEBUG, and it ends with the first success of a part that had failed. A
part that the server refuses or keeps waiting, while others are served, has a line of its own, until it succeeds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from holdfast.errors import Unavailable
from holdfast.store.errors import CONNECTION_LOST

log = logging.getLogger("holdfast.outage")

_AWAY = (Unavailable, TimeoutError, *CONNECTION_LOST)
_ALL = ""
"""Stands for everything that asks, among the parts."""


class Outage:
    """`failed` and `answered` by the parts of a process, from any thread."""

    def __init__(self, what: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._lock = threading.Lock()
        self._failing: set[str] = set()
        """The parts that failed since they last succeeded."""
        self._began_at: dict[str, float] = {}
        """When the trouble of each part began, and that of all."""

    def failed(self, part: str, error: BaseException) -> None:
        """A part could not do its work, and will try again."""
        whose = _ALL if isinstance(error, _AWAY) else part
        with self._lock:
            self._failing.add(part)
            is_new = whose not in self._began_at
            self._began_at.setdefault(whose, self._clock())
        said = str(error) or type(error).__name__
        verb = "does not answer" if whose == _ALL else "refuses"
        level = logging.WARNING if is_new else logging.DEBUG
        log.log(level, "%s %s (%s): %s; trying again", self._what, verb, part, said)

    def answered(self, part: str) -> None:
        """A part did its work. Cheap while there is no trouble: hot paths come here."""
        if part not in self._failing:
            return
        with self._lock:
            self._failing.discard(part)
            ended = [self._began_at.pop(one) for one in (_ALL, part) if one in self._began_at]
        for began_at in ended:
            log.warning("%s answers again (%s) after %.1f s", self._what, part, self._clock() - began_at)
