"""The relay: carries hints from the outbox to the carrier, at the ring of the bell and by polling beneath.

Any number may run; a hint is taken by one of them. No transaction is open while the carrier is asked. A carrier that is
away costs one attempt every few seconds; the hints stay where they are.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

from holdfast.core.hints import Hint, Hinted, read_hint
from holdfast.dispatcher.engine import Engine
from holdfast.dispatcher.hints import TAKE_BATCH, replenish_once, return_hints, take_hints, tell_away, tell_back
from holdfast.errors import HoldfastError, NotFound, Unavailable
from holdfast.store.database import TROUBLE
from holdfast.wake.bell import WAKE_CHANNEL
from holdfast.wake.carriers import NO_DEAD_LETTER_QUEUE, address_for, is_external, open_transport
from holdfast.wake.consumer import find_hinted
from holdfast.wake.listener import Listener
from holdfast.wake.transport import BATCH_MAX, Delivery, Transport

log = logging.getLogger("holdfast.relay")

RELAY_SECONDS = 0.25
REPLENISH_SECONDS = 1.0
REVIVE_SECONDS = 30.0
AWAY_SECONDS_FIRST = 0.2
AWAY_SECONDS_MAX = 5.0
_TROUBLE: tuple[type[Exception], ...] = (HoldfastError, *TROUBLE)


class Relay:
    """`run()` until cancelled, or single passes from a test."""

    def __init__(self, engine: Engine) -> None:
        assert is_external(engine.settings.wake)
        self._engine = engine
        self._settings = engine.settings.wake
        self._transports: dict[str, Transport] = {}
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
        if await self.relay_once() == TAKE_BATCH:
            return
        try:
            # Not wait_for: a ring and a cancellation at the same moment would lose the latter.
            async with asyncio.timeout(RELAY_SECONDS):
                await self._rung.wait()
        except TimeoutError:
            return

    async def relay_once(self) -> int:
        """Send what is due; how many hints. `Unavailable` if the carrier is away, and then nothing is forgotten."""
        database = self._engine.database
        hints = await take_hints(database, resend_seconds=self._settings.resend_seconds)
        for address, batch in self._by_address(hints).items():
            try:
                await self._transport(address).publish(batch)
            except Unavailable as error:
                await return_hints(database, hints)
                await self._notice(error)
                raise
        if hints:
            await self._notice(None)
        return len(hints)

    async def replenish_once(self) -> None:
        """Make good what was lost, and let in what found no room."""
        if await replenish_once(self._engine.database):
            self._rung.set()

    async def revive_once(self) -> None:
        """Take hints out of the dead-letter queue: those whose task still waits go out once more, all are deleted."""
        if (address := self._settings.sqs_dead_letter_url) is None:
            return
        dead = self._transport(address)
        while deliveries := await _received(dead, address):
            hints = [hint for one in deliveries if (hint := read_hint(one.body)) is not None]
            tasks = await find_hinted(self._engine.database, [hint.task_id for hint in hints])
            waiting = [again for hint in hints if (again := _again(hint, tasks[hint.task_id])) is not None]
            for home, batch in self._by_address(waiting).items():
                await self._transport(home).publish(batch)
            await dead.done(deliveries)
            log.info("%s dead hints, %s of them sent again", len(deliveries), len(waiting))

    def _by_address(self, hints: Sequence[Hint]) -> dict[str, list[Hint]]:
        sorted_out: dict[str, list[Hint]] = defaultdict(list)
        for hint in hints:
            sorted_out[address_for(self._settings, hint.queue)].append(hint)
        return sorted_out

    def _transport(self, address: str) -> Transport:
        if (known := self._transports.get(address)) is None:
            known = self._transports[address] = open_transport(self._settings, address)
        return known

    async def _notice(self, error: Unavailable | None) -> None:
        """Tell the database when it changes, so that `why` and `doctor` know."""
        if error is not None:
            if not self._is_away:
                log.warning("hints wait, workers poll: %s", error)
            await tell_away(self._engine.database, self._settings.over, error.detail)
        elif self._is_away is not False:
            await tell_back(self._engine.database, self._settings.over)
        self._is_away = error is not None

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
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, AWAY_SECONDS_MAX)


async def _received(dead: Transport, address: str) -> Sequence[Delivery]:
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


def _again(hint: Hint, task: Hinted) -> Hint | None:
    """The hint as it is to be sent again, if its task waits; whatever attempt it spoke of, the next one counts."""
    if task.state != "q":
        return None
    return Hint(task_id=hint.task_id, attempt=task.attempt + 1, action=task.action, queue=task.queue)
