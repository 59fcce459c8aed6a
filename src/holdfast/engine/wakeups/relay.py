"""The relay: carries hints from the outbox to the carrier, at the ring of the bell and by polling beneath.

Any number may run; a hint is taken by one of them. No transaction is open while the carrier is asked. An address that
does not answer costs one try every few seconds; its hints stay where they are, and others go their way.
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
    """What became of one pass."""

    taken: int
    sent: int = 0
    trouble: Unavailable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _AddressBackoff:
    """How long an address that did not take its hints is left alone."""

    pause_seconds: float
    until: float

    @classmethod
    def after(cls, last: _AddressBackoff | None) -> _AddressBackoff:
        """The first rest, or one after another in vain: twice as long, up to a bound."""
        pause = AWAY_SECONDS_FIRST if last is None else min(2 * last.pause_seconds, AWAY_SECONDS_MAX)
        return cls(pause_seconds=pause, until=time.monotonic() + pause * random.uniform(0.5, 1.0))

    @property
    def seconds_left(self) -> float:
        return self.until - time.monotonic()


class Relay:
    """`run()` until cancelled, or single passes from a test."""

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
        """The bell rings for new work anyway; without it hints go out a moment later."""
        await self._until_done(listener.start)

    async def _relay(self) -> None:
        self._rung.clear()
        if (await self._send_due()).taken == TAKE_BATCH:
            return
        try:
            # Not wait_for: a ring and a cancellation at the same moment would lose the latter.
            async with asyncio.timeout(RELAY_SECONDS):
                await self._rung.wait()
        except TimeoutError:
            return

    async def relay_once(self) -> int:
        """Send what is due; how many hints went. `Unavailable` if none could go; nothing is forgotten."""
        done = await self._send_due()
        if done.trouble is not None and not done.sent:
            raise done.trouble
        return done.sent

    async def _send_due(self) -> _Sent:
        """Send what is due, to each address apart: one that does not take its hints delays none of the others."""
        hints = await take_hints(self._engine.database, resend_seconds=self._settings.resend_seconds)
        done = _Sent(taken=len(hints))
        await asyncio.gather(*(self._send(address, batch, done) for address, batch in self._by_address(hints).items()))
        await self._notice(done)
        return done

    async def _send(self, address: str, batch: list[Hint], done: _Sent) -> None:
        """Send to one address; what it does not take is due again when it is to be tried again."""
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
        """Make good what was lost, and let in what found no room."""
        if await replenish_once(self._engine.database):
            self._rung.set()

    async def revive_once(self) -> None:
        """Take hints out of the dead-letter queue: those whose task still waits go out once more, all are deleted.

        What the outbox still has is sent by it, so that no second copy travels.
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
        """Send hints that are not in the outbox; those that could not go."""
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
        """Tell the database when it changes, so that `why` and `doctor` know."""
        if done.trouble is not None:
            if not self._is_away:
                log.warning("hints wait, workers poll: %s", done.trouble)
            await tell_away(self._engine.database, self._settings.over, done.trouble.detail)
            self._is_away = True
            return
        # An address that nobody had a hint for since it was to be tried again stands in nobody's way.
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
                # It runs beside the repair loops, and must not take them along.
                log.exception("the relay failed, will try again")
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, AWAY_SECONDS_MAX)


async def _received(dead: HintTransport, address: str) -> Sequence[HintDelivery]:
    """What lies in the dead-letter queue; one that is named and not there is a mistake, not an outage."""
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
    """The hint as it is to be sent again, if its task waits; whatever attempt it spoke of, the next one counts."""
    if task.state != "q":
        return None
    return Hint(task_id=hint.task_id, attempt=task.attempt + 1, action=task.action, queue=task.queue)
