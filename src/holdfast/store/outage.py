"""Log outages: one line when one begins and one when it ends, with its duration.

All parts of a process that use the same database share one `Outage`. When nothing answers, the outage is common to all:
further failures are logged at level DEBUG, and it ends with the first success of a part that had failed. A part that
the server refuses or blocks while others are served has its own line, until it succeeds.
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
"""The key of the common outage, among the parts."""


class Outage:
    """Outage state, reported by the parts of a process with `failed` and `answered`, from any thread."""

    def __init__(self, what: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._lock = threading.Lock()
        self._failing: set[str] = set()
        """The parts that failed since they last succeeded."""
        self._began_at: dict[str, float] = {}
        """When the outage of each part began, and the common one."""

    def failed(self, part: str, error: BaseException) -> None:
        """Report that a part could not do its work and will retry."""
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
        """Report that a part did its work. Cheap while there is no outage, because hot paths call it."""
        if part not in self._failing:
            return
        with self._lock:
            self._failing.discard(part)
            ended = [self._began_at.pop(one) for one in (_ALL, part) if one in self._began_at]
        for began_at in ended:
            log.warning("%s answers again (%s) after %.1f s", self._what, part, self._clock() - began_at)
