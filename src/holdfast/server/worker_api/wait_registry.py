"""Long-poll registry: parks remote workers until a notification arrives, so that they need not poll.

One LISTEN connection serves every waiting worker of this process. A notification wakes the few workers that have waited
longest among those that serve its lane; a worker that gets all it wanted wakes the next few. So one task wakes two
workers, not two hundred. Notifications may be lost: once per poll interval, one worker of each group claims. All state
here is only for speed.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from weakref import WeakValueDictionary

from holdfast.engine.lifecycle.tasks.claim import WorkerIdentity
from holdfast.store.catalog import Catalog, Lane
from holdfast.store.database import ANY_DB_ERROR, Database
from holdfast.wakeups.listener import Listener
from holdfast.wakeups.notifier import STOP_CHANNEL, WAKE_CHANNEL

log = logging.getLogger("holdfast.server")

RUNNERS = 2
"""How many workers of each group one notification wakes."""
AGAIN_SECONDS_FIRST, AGAIN_SECONDS_MAX = 0.002, 0.25
"""First and longest pause before a worker claims again after other transactions had locked claimable tasks."""
BEAT_SECONDS = 8.0
"""How often heartbeats of waiting workers are recorded."""

Lanes = tuple[int, ...]
STOPPED: Lanes = (-1,)
"""The result of a wait when an attempt of the worker was asked to stop."""
UNHEARD_MAX = 1_000
UNHEARD_SECONDS_MAX = 10.0
_Kind = tuple[int, frozenset[str], frozenset[str] | None]


class WaitGroup:
    """Waiting workers of one kind: same tenant, same actions, same queues."""

    __slots__ = (
        "__weakref__",
        "actions",
        "again_seconds",
        "is_empty",
        "is_looked_at_again",
        "looked_at",
        "notification_count",
        "queues",
        "tenant_id",
        "waiting",
    )

    def __init__(self, tenant_id: int, identity: WorkerIdentity) -> None:
        self.tenant_id = tenant_id
        self.actions = frozenset(identity.actions)
        self.queues = None if identity.queues is None else frozenset(identity.queues)
        self.waiting: deque[asyncio.Future[Lanes | None]] = deque()
        self.notification_count = 0
        self.is_empty = False
        """A claim found nothing, and no notification came since."""
        self.looked_at = 0.0
        self.again_seconds = AGAIN_SECONDS_FIRST
        self.is_looked_at_again = False
        """A repeated claim for locked tasks is already scheduled."""

    def serves(self, lane: Lane) -> bool:
        is_ours = lane.tenant_id == self.tenant_id and lane.action in self.actions
        return is_ours and (self.queues is None or lane.queue in self.queues)

    def call(self, count: int, lanes: Lanes = ()) -> None:
        """Wake the workers that have waited longest."""
        while self.waiting and count:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(lanes)
                count -= 1


class WaitRegistry:
    """Waits of workers until they are woken. It listens from the first wait on; `close` ends every wait."""

    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        *,
        poll_seconds: float,
        alive: Callable[[Sequence[int]], Awaitable[None]],
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._poll_seconds = poll_seconds
        self._alive = alive
        # Groups are kept alive by the sessions that use them; a group without sessions is dropped.
        self._groups: WeakValueDictionary[_Kind, WaitGroup] = WeakValueDictionary()
        self._here: dict[int, set[asyncio.Future[Lanes | None]]] = {}
        """The open waits of each worker."""
        self._unheard: dict[int, float] = {}
        """Workers that were not waiting when one of their attempts was asked to stop, and when that was."""
        self._listener: Listener | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting = asyncio.Lock()
        self._is_closed = False

    def group(self, tenant_id: int, identity: WorkerIdentity) -> WaitGroup:
        """Return the wait group of this worker's kind."""
        queues = None if identity.queues is None else frozenset(identity.queues)
        key = (tenant_id, frozenset(identity.actions), queues)
        if (found := self._groups.get(key)) is None:
            found = self._groups[key] = WaitGroup(tenant_id, identity)
        return found

    def looked(self, group: WaitGroup, notification_count: int, *, is_more: bool, has_missed: bool = False) -> None:
        """Record that a worker tried to claim. `notification_count` is the count before its claim.

        If other transactions had locked tasks (`has_missed`), schedule another claim: no notification follows when they
        release the locks.
        """
        if not has_missed:
            group.again_seconds = AGAIN_SECONDS_FIRST
        elif not group.is_looked_at_again:
            group.is_looked_at_again = True
            asyncio.get_running_loop().call_later(group.again_seconds, self._look_again, group)
            group.again_seconds = min(group.again_seconds * 2, AGAIN_SECONDS_MAX)
        if is_more:
            group.is_empty = False
            group.call(RUNNERS)
        elif group.notification_count == notification_count and self._listener is not None:
            group.is_empty, group.looked_at = True, time.monotonic()

    def _look_again(self, group: WaitGroup) -> None:
        group.is_looked_at_again = False
        self._announce(group, ())

    def wake_next(self, group: WaitGroup, lanes: Lanes) -> None:
        """Wake the next worker, because the woken one cannot claim."""
        group.is_empty = False
        group.call(1, lanes)

    def end_waits(self, worker_ids: Iterable[int]) -> None:
        """End the waits of these workers, because there is something to report to them."""
        for worker_id in worker_ids:
            for turn in self._here.get(worker_id, ()):
                if not turn.done():
                    turn.set_result(None)

    def is_known_empty(self, group: WaitGroup) -> bool:
        """Return whether a claim would find nothing, as far as this process knows."""
        return group.is_empty and time.monotonic() - group.looked_at < 2 * self._poll_seconds

    async def wait(
        self, group: WaitGroup | None, worker_id: int, seconds: float, *, notification_count: int
    ) -> Lanes | None:
        """Wait to be woken; return the notified lanes, `STOPPED`, or None when the time is over.

        `notification_count` is the count of the group before the worker's unsuccessful claim; if it grew since, the
        worker claims again at once. Without a group, only stop requests end the wait.
        """
        await self.open()
        if self._is_closed:
            return None
        if time.monotonic() - self._unheard.pop(worker_id, float("-inf")) < UNHEARD_SECONDS_MAX:
            return STOPPED
        if group is not None and group.notification_count != notification_count:
            return ()
        turn: asyncio.Future[Lanes | None] = asyncio.get_running_loop().create_future()
        if group is not None:
            group.waiting.append(turn)
        self._here.setdefault(worker_id, set()).add(turn)
        try:
            async with asyncio.timeout(seconds):
                return await turn
        except TimeoutError:
            return None
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result() is STOPPED:
                self._unheard[worker_id] = time.monotonic()
            elif group is not None and turn.done() and not turn.cancelled() and turn.result() is not None:
                # The worker was woken and disconnected at the same moment: wake the next one.
                group.call(1, turn.result() or ())
            raise
        finally:
            self._leave(group, turn, worker_id)

    def _on_stop(self, _turn: int, worker_ids: Sequence[int]) -> None:
        """Wake the workers whose attempts were asked to stop."""
        now = time.monotonic()
        for worker_id in worker_ids:
            turns = [turn for turn in self._here.get(worker_id, ()) if not turn.done()]
            for turn in turns:
                turn.set_result(STOPPED)
            if not turns:
                self._unheard[worker_id] = now
        if len(self._unheard) > UNHEARD_MAX:
            self._unheard = {item: at for item, at in self._unheard.items() if now - at < UNHEARD_SECONDS_MAX}

    def _leave(self, group: WaitGroup | None, turn: asyncio.Future[Lanes | None], worker_id: int) -> None:
        if group is not None and turn in group.waiting:
            group.waiting.remove(turn)
        turns = self._here[worker_id]
        turns.discard(turn)
        if not turns:
            del self._here[worker_id]

    async def close(self) -> None:
        """End every wait, and stop listening."""
        self._is_closed = True
        for group in list(self._groups.values()):
            while group.waiting:
                turn = group.waiting.popleft()
                if not turn.done():
                    turn.set_result(None)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            await self._listener.close()

    async def open(self) -> None:
        """Start to listen. Call it before a first claim, so that no notification is missed between the two."""
        if self._listener is not None:
            return
        async with self._starting:
            if self._listener is None and not self._is_closed:
                listener = Listener(
                    self._database, WAKE_CHANNEL, self._on_notification, also={STOP_CHANNEL: self._on_stop}
                )
                await listener.start()
                self._listener = listener
                self._begin(self._poll(), "holdfast-wait-poll")
                self._begin(self._beat(), "holdfast-wait-beat")

    def _begin(self, work: Awaitable[None], name: str) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_notification(self, _turn: int, lanes: Sequence[int]) -> None:
        if not lanes:
            # The listener reconnected: any notification may have been lost.
            for group in list(self._groups.values()):
                self._announce(group, ())
            return
        known = [lane for lane in lanes if self._catalog.knows_lane(lane)]
        self._ring(known)
        if len(known) < len(lanes):
            self._begin(self._learn([lane for lane in lanes if lane not in set(known)]), "holdfast-wait-learn")

    async def _learn(self, lanes: Sequence[int]) -> None:
        try:
            await self._catalog.learn(lanes, ())
        except ANY_DB_ERROR as error:
            log.warning("could not look up the workers of a notification; the next poll finds the tasks: %s", error)
            return
        self._ring([lane for lane in lanes if self._catalog.knows_lane(lane)])

    def _ring(self, lanes: Iterable[int]) -> None:
        named = [(lane, self._catalog.lane(lane)) for lane in lanes]
        if named:
            for group in list(self._groups.values()):
                if served := tuple(lane_id for lane_id, lane in named if group.serves(lane)):
                    self._announce(group, served)

    def _announce(self, group: WaitGroup, lanes: Lanes) -> None:
        group.notification_count += 1
        group.is_empty = False
        group.call(RUNNERS, lanes)

    async def _poll(self) -> None:
        """Wake one worker of each group regularly, in case a notification was lost."""
        while True:
            await asyncio.sleep(self._poll_seconds * random.uniform(0.75, 1.25))
            for group in list(self._groups.values()):
                group.call(1)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            if self._here:
                try:
                    await self._alive(list(self._here))
                    self._database.outage.answered("waiting workers")
                except ANY_DB_ERROR as error:
                    self._database.outage.failed("waiting workers", error)
