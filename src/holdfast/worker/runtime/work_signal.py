"""Signals that an exchange is needed, and wakes the tasks that exchange.

A notification that arrives during an exchange is newer than its response. So notifications are counted, and a response
covers only those received before its request was sent. Each exchange task has its own wake-up event: it takes the event
from no other task, and an event that is set while the task is busy is found when it is back.
"""

from __future__ import annotations

import asyncio

from holdfast.execution.running_attempt import FOREVER

PRIMARY = 0
"""The number of the primary exchange, which sends the notes and restores the connection."""


class WorkSignal:
    """The reasons why one worker should exchange with the engine, for a number of concurrent exchanges."""

    def __init__(self, concurrent_exchanges: int) -> None:
        self.is_connected = False
        """Whether no response can have been lost since the connection was last resumed. A lost response must be
        requested at once: it may contain leases that only this worker can renew.
        """
        self.has_notes_due = False
        """Whether a heartbeat found notes that no exchange has sent."""
        self.has_plenty = False
        """Whether the last claim found tasks and may have left some."""
        self.notification_count = 1
        """How many notifications of work were received. It starts at 1, so the first claim needs no notification."""
        self._answered_count = 0
        self._wakeups = [asyncio.Event() for _ in range(concurrent_exchanges)]
        self._are_awake = False

    @property
    def may_have_work(self) -> bool:
        return self.notification_count > self._answered_count

    def notify(self) -> None:
        """Record that there may be work."""
        self.notification_count += 1

    def notify_and_wake(self) -> None:
        self.notify()
        self.wake()

    def record_claim(self, notification_count: int, *, may_have_more: bool, has_found: bool) -> None:
        """Record the response to a claim that was sent after `notification_count` notifications."""
        if may_have_more:
            self.notify()
        else:
            self._answered_count = max(self._answered_count, notification_count)
        self.has_plenty = may_have_more and has_found

    def lose_connection(self) -> None:
        """Record that a response was lost: it is unknown what it contained and whether there was more work."""
        self.is_connected = False
        self.notify()
        self.wake()

    def wake(self) -> None:
        """Wake every exchange task to check whether it has something to do. Called for each attempt that ends."""
        if not self._are_awake:
            self._are_awake = True
            for wakeup in self._wakeups:
                wakeup.set()

    async def wait(self, seconds: float, number: int = PRIMARY) -> None:
        """Wait until something changed since this exchange task last waited, at most `seconds`."""
        wakeup = self._wakeups[number]
        if not wakeup.is_set():
            try:
                await asyncio.wait_for(wakeup.wait(), None if seconds == FOREVER else max(0.0, seconds))
            except TimeoutError:
                return
        wakeup.clear()
        self._are_awake = False
