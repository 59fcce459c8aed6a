"""The relay: sends hints from the outbox to the carrier, on notification and by polling as a fallback.

Any number may run; one relay takes each hint. No transaction is open while the carrier is called. An address that does
not answer costs one try every few seconds; its hints wait, and hints for other addresses are sent.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from holdfast.core.wakeups.hint import Hint, HintedTask, read_hint
from holdfast.engine.engine import Engine
from holdfast.engine.wakeups.outbox import (
    TAKE_BATCH,
    remind_hints,
    replenish_once,
    return_hints,
    take_hints,
    tell_away,
    tell_back,
)
from holdfast.errors import HoldfastError, NotFound, Unavailable
from holdfast.store.database import ANY_DB_ERROR
from holdfast.wakeups.carriers import NO_DEAD_LETTER_QUEUE, address_for, is_external, open_transport
from holdfast.wakeups.consumer import find_hinted
from holdfast.wakeups.contract import BATCH_MAX, HintDelivery, HintTransport, away
from holdfast.wakeups.listener import Listener
from holdfast.wakeups.notifier import WAKE_CHANNEL

log = logging.getLogger("holdfast.relay")

RELAY_SECONDS = 0.25
REPLENISH_SECONDS = 1.0
REVIVE_SECONDS = 30.0
AWAY_SECONDS_FIRST = 0.2
AWAY_SECONDS_MAX = 5.0
FORGET_SECONDS = 30.0
ADDRESSES_AT_ONCE = 16
SEND_SECONDS_MAX = 20.0
_TROUBLE: tuple[type[Exception], ...] = (HoldfastError, *ANY_DB_ERROR)


@dataclass(slots=True, kw_only=True)
class _Sent:
    """The result of one pass."""

    taken: int
    sent: int = 0
    trouble: Unavailable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _AddressBackoff:
    """How long an address that failed is not tried again."""

    pause_seconds: float
    until: float

    @classmethod
    def after(cls, last: _AddressBackoff | None) -> _AddressBackoff:
        """Return the backoff after a failure: the first one, or twice the last one, up to a bound."""
        pause = AWAY_SECONDS_FIRST if last is None else min(2 * last.pause_seconds, AWAY_SECONDS_MAX)
        return cls(pause_seconds=pause, until=time.monotonic() + pause * random.uniform(0.5, 1.0))

    @property
    def seconds_left(self) -> float:
        return self.until - time.monotonic()


class Relay:
    """One relay. Call `run()` until cancelled, or single passes from a test."""

    def __init__(self, engine: Engine) -> None:
        assert is_external(engine.settings.wake)
        self._engine = engine
        self._settings = engine.settings.wake
        self._transports: dict[str, HintTransport] = {}
        self._rests: dict[str, _AddressBackoff] = {}
        self._sending = asyncio.Semaphore(ADDRESSES_AT_ONCE)
        self._rung = asyncio.Event()
        self._is_away: bool | None = None

    async def run(self) -> None:
        listener = Listener(self._engine.database, WAKE_CHANNEL, lambda _turn, _lanes: self._rung.set())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._listen(listener))
                group.create_task(self._repeat(self._relay, 0.0))
                group.create_task(self._repeat(self.replenish_once, REPLENISH_SECONDS))
                group.create_task(self._repeat(self.revive_once, REVIVE_SECONDS))
        finally:
            await listener.close()
            await self.close()

    async def close(self) -> None:
        for transport in self._transports.values():
            await transport.close()
        self._transports.clear()

    async def _listen(self, listener: Listener) -> None:
        """Listen for notifications of new work; without them hints are sent a moment later."""
        await self._until_done(listener.start)

    async def _relay(self) -> None:
        self._rung.clear()
        if (await self._send_due()).taken == TAKE_BATCH:
            return
        try:
            # Not wait_for: if a notification and a cancellation arrived together, the cancellation would be lost.
            async with asyncio.timeout(RELAY_SECONDS):
                await self._rung.wait()
        except TimeoutError:
            return

    async def relay_once(self) -> int:
        """Send the hints that are due; return how many were sent. `Unavailable` if none could be; no hint is
        deleted."""
        done = await self._send_due()
        if done.trouble is not None and not done.sent:
            raise done.trouble
        return done.sent

    async def _send_due(self) -> _Sent:
        """Send the hints that are due, to all addresses concurrently, so that a failing address delays no other."""
        hints = await take_hints(self._engine.database, resend_seconds=self._settings.resend_seconds)
        done = _Sent(taken=len(hints))
        await asyncio.gather(*(self._send(address, batch, done) for address, batch in self._by_address(hints).items()))
        await self._notice(done)
        return done

    async def _send(self, address: str, batch: list[Hint], done: _Sent) -> None:
        """Send to one address. Hints that it does not accept are due again when it is tried next."""
        rest = self._rests.get(address)
        if rest is None or rest.seconds_left <= 0:
            try:
                async with self._sending, asyncio.timeout(SEND_SECONDS_MAX):
                    await self._transport(address).publish(batch)
            except (Unavailable, TimeoutError) as error:
                rest = self._rests[address] = _AddressBackoff.after(rest)
                done.trouble = error if isinstance(error, Unavailable) else away("The carrier", error)
            else:
                self._rests.pop(address, None)
                done.sent += len(batch)
                return
        await return_hints(self._engine.database, batch, seconds=rest.seconds_left)

    async def replenish_once(self) -> None:
        """Write hints that were lost or that found no room in the outbox."""
        if await replenish_once(self._engine.database):
            self._rung.set()

    async def revive_once(self) -> None:
        """Empty the dead-letter queue: hints whose task still waits are sent once more, all are deleted.

        Hints that the outbox still has are sent from there, so that there is no second copy.
        """
        if (address := self._settings.sqs_dead_letter_url) is None:
            return
        dead = self._transport(address)
        while deliveries := await _received(dead, address):
            read = [(one, read_hint(one.body)) for one in deliveries]
            hints = [hint for _, hint in read if hint is not None]
            tasks = await find_hinted(self._engine.database, [hint.task_id for hint in hints])
            waiting = [again for hint in hints if (again := _again(hint, tasks[hint.task_id])) is not None]
            outstanding = await remind_hints(self._engine.database, [hint.task_id for hint in waiting])
            unsent = await self._publish([hint for hint in waiting if hint.task_id not in outstanding])
            await dead.done([one for one, hint in read if hint is None or hint.task_id not in unsent])
            log.info("%s dead hints, %s of them sent again", len(deliveries), len(waiting) - len(unsent))
            self._rung.set()

    async def _publish(self, hints: Sequence[Hint]) -> set[int]:
        """Send hints that are not in the outbox. Return the tasks whose hint could not be sent."""
        unsent: set[int] = set()
        for address, batch in self._by_address(hints).items():
            try:
                await self._transport(address).publish(batch)
            except Unavailable as error:
                log.warning("%s dead hints stay where they are: %s", len(batch), error)
                unsent |= {hint.task_id for hint in batch}
        return unsent

    def _by_address(self, hints: Sequence[Hint]) -> dict[str, list[Hint]]:
        sorted_out: dict[str, list[Hint]] = defaultdict(list)
        for hint in hints:
            sorted_out[address_for(self._settings, hint.queue)].append(hint)
        return sorted_out

    def _transport(self, address: str) -> HintTransport:
        if (known := self._transports.get(address)) is None:
            known = self._transports[address] = open_transport(self._settings, address)
        return known

    async def _notice(self, done: _Sent) -> None:
        """Store changes of the carrier's state in the database, where `why` and `doctor` read it."""
        if done.trouble is not None:
            if not self._is_away:
                log.warning("hints wait, workers poll: %s", done.trouble)
            await tell_away(self._engine.database, self._settings.over, done.trouble.detail)
            self._is_away = True
            return
        # Forget addresses for which there was no hint since they could be tried again.
        self._rests = {address: rest for address, rest in self._rests.items() if rest.seconds_left > -FORGET_SECONDS}
        if done.sent and not self._rests and self._is_away is not False:
            await tell_back(self._engine.database, self._settings.over)
            self._is_away = False

    async def _repeat(self, step: Callable[[], Awaitable[None]], seconds: float) -> None:
        while True:
            await self._until_done(step)
            await asyncio.sleep(seconds * random.uniform(0.8, 1.0))

    async def _until_done(self, step: Callable[[], Awaitable[None]]) -> None:
        pause = AWAY_SECONDS_FIRST
        while True:
            try:
                await step()
                return
            except _TROUBLE as error:
                log.debug("will try again: %s", error)
            except Exception:
                # The relay runs next to the maintenance loops, and must not end them.
                log.exception("the relay failed, will try again")
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, AWAY_SECONDS_MAX)


async def _received(dead: HintTransport, address: str) -> Sequence[HintDelivery]:
    """Receive from the dead-letter queue. A configured queue that does not exist is an error, not an outage."""
    try:
        return await dead.receive(BATCH_MAX, wait_seconds=0)
    except Unavailable as error:
        if "NonExistentQueue" not in error.detail and "does not exist" not in error.detail:
            raise
        log.error("the dead-letter queue %s does not exist", address)
        raise NotFound(
            f"The dead-letter queue {address} does not exist.",
            code=NO_DEAD_LETTER_QUEUE,
            advice="Make it, or mend HOLDFAST_SQS_DEAD_LETTER_URL.",
        ) from error


def _again(hint: Hint, task: HintedTask) -> Hint | None:
    """Return the hint to send again if its task waits, always for the task's next attempt; else None."""
    if task.state != "q":
        return None
    return Hint(task_id=hint.task_id, attempt=task.attempt + 1, action=task.action, queue=task.queue)
