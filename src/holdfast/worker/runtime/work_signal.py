"""What calls for an exchange, and who is woken by it.

An exchange takes its time, and what is heard meanwhile is newer than its answer. So rings are counted, and an answer
covers those alone that were heard before it was asked for. A flight is a task that exchanges; each has a wake-up of its
own: who hears it takes it from nobody else, and one that comes while a flight is busy is found when it is back.
"""

from __future__ import annotations

import asyncio

from holdfast.execution.running_attempt import FOREVER

FIRST = 0
"""The number of the flight that carries the notes and mends the line."""


class WorkSignal:
    """Why one worker should exchange with its dispatcher, for this many flights."""

    def __init__(self, concurrent_exchanges: int) -> None:
        self.is_line_up = False
        """No answer may have been lost since the line was last resumed: what was lost has to be asked for at once,
        because it may be about leases that nobody else keeps."""
        self.has_notes_due = False
        """A beat found notes that no exchange has taken along."""
        self.has_plenty = False
        """The last look found work and may have left some."""
        self.notification_count = 1
        """How often there was said to be work: once at the beginning, unheard."""
        self._answered = 0
        self._wakeups = [asyncio.Event() for _ in range(concurrent_exchanges)]
        self._are_awake = False

    @property
    def may_have_work(self) -> bool:
        return self.notification_count > self._answered

    def notify(self) -> None:
        """There may be work."""
        self.notification_count += 1

    def looked(self, notification_count: int, *, may_have_more: bool, has_found: bool) -> None:
        """A claim that was sent when so many `notification_count` had been heard was answered."""
        if may_have_more:
            self.notify()
        else:
            self._answered = max(self._answered, notification_count)
        self.has_plenty = may_have_more and has_found

    def lose_connection(self) -> None:
        """An answer was lost: nobody knows what it had, nor whether there was more."""
        self.is_line_up = False
        self.notify()
        self.wake()

    def wake(self) -> None:
        """Something changed: every flight looks whether it is called for. Called for each attempt that ends."""
        if not self._are_awake:
            self._are_awake = True
            for one in self._wakeups:
                one.set()

    async def wait(self, seconds: float, flight: int = FIRST) -> None:
        """Wait until something changed since this flight last waited, or so many seconds."""
        wakeup = self._wakeups[flight]
        if not wakeup.is_set():
            try:
                await asyncio.wait_for(wakeup.wait(), None if seconds == FOREVER else max(0.0, seconds))
            except TimeoutError:
                return
        wakeup.clear()
        self._are_awake = False
