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
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from holdfast.execution.notes import Notes
from holdfast.execution.running_attempt import FOREVER
from holdfast.store.database import ANY_DB_ERROR
from holdfast.worker.runtime.state import WorkerState

log = logging.getLogger("holdfast.worker")

RECONNECT_SECONDS_FIRST = 0.05
RECONNECT_SECONDS_MAX = 1.0
RECLAIM_SECONDS_FIRST, RECLAIM_SECONDS_MAX = 0.002, 0.25
"""First and longest pause before a worker claims again after other transactions had locked claimable tasks."""


class ExchangeLoop:
    """The exchanges of one worker. They claim tasks until the worker drains or stops; reports are sent either way."""

    def __init__(self, state: WorkerState) -> None:
        self._state = state
        self._transport = state.transport
        self._signal = state.signal
        self._additional_count = 0
        self._no_additional = asyncio.Event()
        self._no_additional.set()
        self._reconnect_seconds = RECONNECT_SECONDS_FIRST
        self._reclaim_seconds = RECLAIM_SECONDS_FIRST
        self.last_error: Exception | None = None
        """The last error that cost the connection."""

    async def run(self) -> None:
        """Exchange until stopped. An exchange task that fails with a permanent error cancels the others."""
        additional = [self._run_additional(number) for number in range(1, self._transport.concurrent_exchanges)]
        tasks = [
            asyncio.create_task(exchanges, name="holdfast-exchange") for exchanges in (self._run_primary(), *additional)
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def has_additional(self) -> bool:
        """Whether an additional exchange is under way."""
        return self._additional_count > 0

    async def _run_primary(self) -> None:
        """Run the primary exchange: it polls, sends the notes, restores the connection and completes a drain."""
        state, signal, poll_at = self._state, self._signal, 0.0
        while not state.is_stopping:
            if time.monotonic() >= poll_at:
                signal.notify()
            want = state.claimable_slots()
            if self._needs_exchange(want):
                if not await self.exchange(want):
                    continue
                poll_at = time.monotonic() + self._transport.poll_seconds * random.uniform(0.75, 1.25)
                if signal.may_have_work and state.claimable_slots():
                    # Yield once so that claimed attempts start now. Those that end at once are reported with the next
                    # claim.
                    await asyncio.sleep(0)
                    continue
            if state.is_draining and state.is_empty:
                log.info("drained: nothing is left to do here; leaving")
                state.end_drain()
                return
            if state.claimable_slots() or not state.is_empty:
                self._transport.await_work(is_free=state.claimable_slots() > 0)
            await signal.wait(poll_at - time.monotonic() if state.claimable_slots() else FOREVER)

    def _needs_exchange(self, want: int) -> bool:
        """Return whether the primary exchange has reports, notes or claims to send, or a connection to restore."""
        signal = self._signal
        has_to_send = bool(self._state.reports) or signal.has_notes_due
        return has_to_send or not signal.is_connected or (want > 0 and signal.may_have_work)

    async def _run_additional(self, number: int) -> None:
        """Run additional concurrent exchanges when many reports or free slots are pending.

        On high-latency links this hides round-trip time.
        """
        while not self._state.is_stopping:
            if not self._needs_additional():
                await self._signal.wait(FOREVER, number)
                continue
            with self._additional_running():
                try:
                    await self._exchange_once(self._state.claimable_slots())
                except ANY_DB_ERROR as error:
                    # The primary exchange sends this batch again after it restored the connection.
                    self._transport.outage.failed("exchange", error)
                    self._signal.lose_connection()
            # A drain may wait for this exchange alone, or it may have left free slots that no exchange claims for.
            self._signal.wake()

    @contextmanager
    def _additional_running(self) -> Iterator[None]:
        """Mark an additional exchange as running, so that the connection is not resumed meanwhile."""
        self._additional_count += 1
        self._no_additional.clear()
        try:
            yield
        finally:
            self._additional_count -= 1
            if not self._additional_count:
                self._no_additional.set()

    def _needs_additional(self) -> bool:
        state, signal = self._state, self._signal
        pending = max(len(state.reports), state.claimable_slots() if signal.has_plenty else 0)
        return signal.is_connected and not state.notes and 2 * pending >= state.share

    async def exchange(self, want: int) -> bool:
        """Run the primary exchange; return False if it must be retried. Reports stay queued until they are accepted."""
        try:
            if not self._signal.is_connected:
                await self._resume()
                want = min(want, self._state.claimable_slots())
            # Notes that a heartbeat finds from now on need another exchange: this one may have been sent by then.
            self._signal.has_notes_due = False
            await self._exchange_once(want, self._state.notes)
        except ANY_DB_ERROR as error:
            await self.lose_connection(error)
            return False
        self._transport.outage.answered("exchange")
        self._reconnect_seconds = RECONNECT_SECONDS_FIRST
        return True

    async def _exchange_once(self, want: int, notes: Notes | None = None) -> None:
        state = self._state
        sent_at, notification_count = time.monotonic(), self._signal.notification_count
        with state.sending() as reports, state.requesting(want):
            start = partial(state.start, sent_at=sent_at)
            response = await self._transport.exchange(reports, want, notes, now=sent_at, start=start)
            await state.start(response.claimed, sent_at)
        state.record_settled(response.settled)
        if want:
            self._signal.record_claim(
                notification_count, may_have_more=response.may_have_more, has_found=bool(response.claimed)
            )
            self._schedule_reclaim(response.has_missed)

    def _schedule_reclaim(self, has_missed: bool) -> None:
        """Schedule another claim for tasks that other transactions had locked.

        No notification follows when such a lock is released. The pause doubles with each claim that misses again.
        """
        if not has_missed:
            self._reclaim_seconds = RECLAIM_SECONDS_FIRST
            return
        asyncio.get_running_loop().call_later(self._reclaim_seconds, self._signal.notify_and_wake)
        self._reclaim_seconds = min(self._reclaim_seconds * 2, RECLAIM_SECONDS_MAX)

    async def _resume(self) -> None:
        """Take over leases of this worker that it never received, because the response was lost.

        Wait for running additional exchanges first: what they are about to deliver would be requested twice. If they
        take longer than a quarter of the lease, drop their connections. No other exchange begins before the connection
        is restored.
        """
        dropping = asyncio.get_running_loop().call_later(self._state.settings.lease_seconds / 4, self._transport.drop)
        await self._no_additional.wait()
        dropping.cancel()
        self._transport.drop()
        sent_at = time.monotonic()
        recovered = await self._transport.resume()
        await self._state.start(recovered or (), sent_at)
        self._signal.is_connected = True

    async def lose_connection(self, error: Exception) -> None:
        """Record that the connection failed, and wait before the next attempt."""
        self.last_error = error
        self._transport.outage.failed("exchange", error)
        self._signal.lose_connection()
        self._signal.has_notes_due = bool(self._state.notes)
        if self._no_additional.is_set():
            self._transport.drop()
        await asyncio.sleep(self._reconnect_seconds * random.uniform(0.5, 1.5))
        longest = min(RECONNECT_SECONDS_MAX, self._state.settings.lease_seconds / 4)
        self._reconnect_seconds = min(self._reconnect_seconds * 2, longest)
