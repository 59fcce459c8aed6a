"""The exchange loop of a worker: when to exchange with the engine, what to send, and how to recover a lost connection.

One exchange runs at a time, or a few concurrently where the transport allows it (on high-latency links). Each
concurrent exchange is an asyncio task. Reports of attempts that end during an exchange go with the next one.
`WorkSignal` decides when an exchange is needed. A lost connection stops no attempt: reports wait until the engine
answers again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from holdfast.engine.leases import Settled
from holdfast.execution.notes import Notes
from holdfast.execution.running_attempt import FOREVER
from holdfast.store.database import ANY_DB_ERROR
from holdfast.worker.runtime.running_attempts import BATCH_SHARED_MIN, RunningAttempts
from holdfast.worker.runtime.work_signal import WorkSignal
from holdfast.worker.transport.contract import Transport

log = logging.getLogger("holdfast.worker")

RECONNECT_SECONDS_FIRST = 0.05
RECONNECT_SECONDS_MAX = 1.0
AGAIN_SECONDS_FIRST, AGAIN_SECONDS_MAX = 0.002, 0.25
"""First and longest pause before a worker claims again after other transactions had locked claimable tasks."""


def share_of(slots: int, concurrent_exchanges: int) -> int:
    """Return how many tasks one exchange may claim.

    The concurrent exchanges share the slots evenly, but no exchange gets a share too small to be worth a round trip.
    """
    return max(-(-slots // concurrent_exchanges), min(-(-slots // 2), BATCH_SHARED_MIN))


class ExchangeLoop:
    """The exchanges of one worker. They claim tasks until the worker drains or stops; reports are sent either way."""

    def __init__(
        self,
        transport: Transport,
        attempts: RunningAttempts,
        work_signal: WorkSignal,
        notes: Notes,
        *,
        slots: int,
        announce: Callable[[Settled], None],
    ) -> None:
        self._transport = transport
        self._attempts = attempts
        self._work_signal = work_signal
        self._notes = notes
        self._slots = slots
        self._share = share_of(slots, transport.concurrent_exchanges)
        self._announce = announce
        self._asked = 0
        self._beside = 0
        self._no_additional = asyncio.Event()
        self._no_additional.set()
        self._reconnect_seconds = RECONNECT_SECONDS_FIRST
        self._again_seconds = AGAIN_SECONDS_FIRST
        self.is_stopping = False
        self.is_draining = False
        self.is_drained = False
        """Whether the loop ended because the worker was asked to drain and had nothing left to run or report."""
        self.trouble: Exception | None = None
        """The last error that cost the connection."""

    async def run(self) -> None:
        """Exchange until stopped. An exchange task that fails with a permanent error cancels the others."""
        beside = [self._run_additional(flight) for flight in range(1, self._transport.concurrent_exchanges)]
        concurrent_exchanges = [
            asyncio.create_task(one, name="holdfast-exchange") for one in (self._run_primary(), *beside)
        ]
        try:
            await asyncio.gather(*concurrent_exchanges)
        finally:
            for flight in concurrent_exchanges:
                flight.cancel()
            await asyncio.gather(*concurrent_exchanges, return_exceptions=True)

    async def _run_primary(self) -> None:
        """Run the primary exchange: it polls, sends the notes, restores the connection and completes a drain."""
        work_signal, poll_at = self._work_signal, 0.0
        while not self.is_stopping:
            if time.monotonic() >= poll_at:
                work_signal.notify()
            want = self.want()
            if self._is_called_for(want):
                if not await self.exchange(want):
                    continue
                poll_at = time.monotonic() + self._transport.poll_seconds * random.uniform(0.75, 1.25)
                if work_signal.may_have_work and self.want():
                    # Yield once so that claimed attempts start now. Those that end at once are reported with the next
                    # claim.
                    await asyncio.sleep(0)
                    continue
            if self.is_draining and self._attempts.is_empty:
                log.info("drained: nothing is left to do here; leaving")
                self.is_drained = self.is_stopping = True
                work_signal.wake()
                return
            if self.want() or not self._attempts.is_empty:
                self._transport.await_work(is_free=self.want() > 0)
            await work_signal.wait(poll_at - time.monotonic() if self.want() else FOREVER)

    def _is_called_for(self, want: int) -> bool:
        """Return whether the primary exchange has reports, notes or claims to send, or a connection to restore."""
        work_signal = self._work_signal
        has_to_say = bool(self._attempts.reports) or work_signal.has_notes_due
        return has_to_say or not work_signal.is_line_up or (want > 0 and work_signal.may_have_work)

    async def _run_additional(self, flight: int) -> None:
        """Run additional concurrent exchanges when many reports or free slots are pending.

        On high-latency links this hides round-trip time.
        """
        while not self.is_stopping:
            if not self._is_worth_another():
                await self._work_signal.wait(FOREVER, flight)
                continue
            with self._additional_running():
                try:
                    await self._exchange_once(self.want())
                except ANY_DB_ERROR as error:
                    # The primary exchange sends this batch again after it restored the connection.
                    self._transport.outage.failed("exchange", error)
                    self._work_signal.lose_connection()
            # A drain may wait for this exchange alone, or it may have left free slots that no exchange claims for.
            self._work_signal.wake()

    @contextmanager
    def _additional_running(self) -> Iterator[None]:
        """Mark an additional exchange as running, so that the connection is not resumed meanwhile."""
        self._beside += 1
        self._no_additional.clear()
        try:
            yield
        finally:
            self._beside -= 1
            if not self._beside:
                self._no_additional.set()

    def _is_worth_another(self) -> bool:
        much = max(len(self._attempts.reports), self.want() if self._work_signal.has_plenty else 0)
        return self._work_signal.is_line_up and not self._notes and 2 * much >= self._share

    def want(self) -> int:
        if self.is_draining or self.is_stopping:
            return 0
        return max(0, min(self._share, self._slots - self._attempts.count - self._asked))

    async def exchange(self, want: int) -> bool:
        """Run the primary exchange; return False if it must be retried. Reports stay queued until they are accepted."""
        try:
            if not self._work_signal.is_line_up:
                await self._resume()
                want = min(want, self.want())
            # Notes that a heartbeat finds from now on need another exchange: this one may have been sent by then.
            self._work_signal.has_notes_due = False
            await self._exchange_once(want, self._notes)
        except ANY_DB_ERROR as error:
            await self.lose_connection(error)
            return False
        self._transport.outage.answered("exchange")
        self._reconnect_seconds = RECONNECT_SECONDS_FIRST
        return True

    async def _exchange_once(self, want: int, notes: Notes | None = None) -> None:
        sent_at, notification_count = time.monotonic(), self._work_signal.notification_count
        with self._attempts.sending() as reports, self._asking(want):
            start = partial(self._attempts.start, sent_at=sent_at, is_stopping=self.is_stopping)
            done = await self._transport.exchange(reports, want, notes, now=sent_at, start=start)
            await self._attempts.start(done.claimed, sent_at, is_stopping=self.is_stopping)
        self._announce(done.settled)
        if want:
            self._work_signal.looked(notification_count, may_have_more=done.may_have_more, has_found=bool(done.claimed))
            self._look_again(done.has_missed)

    def _look_again(self, has_missed: bool) -> None:
        """Schedule another claim for tasks that other transactions had locked.

        No notification follows when such a lock is released. The pause doubles with each claim that misses again.
        """
        if not has_missed:
            self._again_seconds = AGAIN_SECONDS_FIRST
            return
        asyncio.get_running_loop().call_later(self._again_seconds, self._notify_again)
        self._again_seconds = min(self._again_seconds * 2, AGAIN_SECONDS_MAX)

    def _notify_again(self) -> None:
        self._work_signal.notify()
        self._work_signal.wake()

    async def _resume(self) -> None:
        """Take over leases of this worker that it never received, because the response was lost.

        Wait for running additional exchanges first: what they are about to deliver would be requested twice. If they
        take longer than a quarter of the lease, drop their connections. No other exchange begins before the connection
        is restored.
        """
        giving_up = asyncio.get_running_loop().call_later(
            self._attempts.settings.lease_seconds / 4, self._transport.drop
        )
        await self._no_additional.wait()
        giving_up.cancel()
        self._transport.drop()
        sent_at = time.monotonic()
        recovered = await self._transport.resume(self._attempts.known)
        await self._attempts.start(recovered or (), sent_at, is_stopping=self.is_stopping)
        self._work_signal.is_line_up = True

    @contextmanager
    def _asking(self, want: int) -> Iterator[None]:
        """Count the requested slots as taken while the exchange runs."""
        self._asked += want
        try:
            yield
        finally:
            self._asked -= want

    async def lose_connection(self, error: Exception) -> None:
        self.trouble = error
        self._transport.outage.failed("exchange", error)
        self._work_signal.lose_connection()
        self._work_signal.has_notes_due = bool(self._notes)
        if self._no_additional.is_set():
            self._transport.drop()
        await asyncio.sleep(self._reconnect_seconds * random.uniform(0.5, 1.5))
        longest = min(RECONNECT_SECONDS_MAX, self._attempts.settings.lease_seconds / 4)
        self._reconnect_seconds = min(self._reconnect_seconds * 2, longest)
