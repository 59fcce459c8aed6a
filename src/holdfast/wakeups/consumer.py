"""Consumer: receives hints of one address, checks each in the database, and makes its worker poll where work waits.

It claims nothing: the worker's own claim applies every limit, pause and priority. A hint whose task this worker then
runs stays hidden from other workers until the task has ended; correctness does not depend on that. Workers also poll
without hints.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from holdfast.core.wakeups.hint import Hint, HintAction, HintDecision, HintedTask, Reader, judge, read_hint
from holdfast.errors import HoldfastError
from holdfast.store.database import ANY_DB_ERROR, Database
from holdfast.store.sql.wakeups import outbox as outbox_sql
from holdfast.wakeups.contract import BATCH_MAX, HintDelivery, HintTransport

log = logging.getLogger("holdfast.wake")

WAIT_SECONDS = 20.0
BUSY_SECONDS = 0.2
KEEP_SECONDS = 0.5
RECONNECT_SECONDS_FIRST = 0.1
RECONNECT_SECONDS_MAX = 5.0
_TROUBLE: tuple[type[Exception], ...] = (HoldfastError, *ANY_DB_ERROR)
_MALFORMED = HintDecision(verdict=HintAction.DROP, reason="malformed")


@dataclass(slots=True)
class _Followed:
    """A hint whose task this worker tries to claim."""

    hint: Hint
    delivery: HintDelivery
    hidden_at: float


class Consumer:
    """Calls `look(lanes)` for useful hints, from `start` until `close`.

    `free` returns how many hints may be received.
    """

    def __init__(
        self,
        transport: HintTransport,
        database: Database,
        reader: Reader,
        *,
        look: Callable[[Sequence[int]], None],
        free: Callable[[], int],
        visibility_seconds: float,
    ) -> None:
        self._transport = transport
        self._database = database
        self._reader = reader
        self._look = look
        self._free = free
        self._renew_seconds = visibility_seconds / 3
        self._followed: dict[int, _Followed] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closing = False
        self.is_away = False

    async def start(self) -> None:
        loops = (("receive", self._receive), ("keep", self._keep))
        self._tasks = [asyncio.create_task(self._repeat(step), name=f"holdfast-wake-{name}") for name, step in loops]

    async def close(self) -> None:
        """Stop receiving.

        Followed hints are left: they are delivered again, and are dropped once their task has ended.
        """
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._transport.close()

    async def _repeat(self, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat through every outage: without hints a worker polls, so a failing carrier never ends it."""
        pause = RECONNECT_SECONDS_FIRST
        while not self._is_closing:
            try:
                await step()
                self._notice(None)
                pause = RECONNECT_SECONDS_FIRST
                continue
            except _TROUBLE as error:
                self._notice(error)
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, RECONNECT_SECONDS_MAX)

    def _notice(self, error: Exception | None) -> None:
        if error is not None and not self.is_away:
            log.warning("wake-ups are unavailable, polling instead: %s", error)
        elif error is None and self.is_away:
            log.info("wake-ups arrive again")
        self.is_away = error is not None

    async def _receive(self) -> None:
        if (room := min(BATCH_MAX, self._free())) <= 0:
            # A busy worker polls by itself when a slot becomes free; meanwhile an idle worker may take the hint.
            await asyncio.sleep(BUSY_SECONDS)
            return
        if deliveries := await self._transport.receive(room, wait_seconds=WAIT_SECONDS):
            await self.take(deliveries)

    async def take(self, deliveries: Sequence[HintDelivery]) -> list[HintDecision]:
        """Decide about the received hints, and act on the decisions."""
        read = [(delivery, read_hint(delivery.body, delivery.sends)) for delivery in deliveries]
        tasks = await self._find([hint.task_id for _, hint in read if hint is not None])
        judged = [_MALFORMED if hint is None else self._judge(delivery, hint, tasks) for delivery, hint in read]
        lanes = {
            lane_id
            for (_, hint), decision in zip(read, judged, strict=True)
            if decision.verdict is HintAction.LOOK
            and hint is not None
            and (lane_id := tasks[hint.task_id].lane_id) is not None
        }
        if lanes:
            self._look(sorted(lanes))
        for (_, hint), decision in zip(read, judged, strict=True):
            if decision.verdict is not HintAction.LOOK:
                log.info(
                    "hint for task %s: %s, %s", "?" if hint is None else hint.task_id, decision.reason, decision.verdict
                )
        await self._transport.done(
            [
                delivery
                for (delivery, _), decision in zip(read, judged, strict=True)
                if decision.verdict is HintAction.DROP
            ]
        )
        return judged

    def _judge(self, delivery: HintDelivery, hint: Hint, tasks: dict[int, HintedTask]) -> HintDecision:
        judged = judge(hint, tasks[hint.task_id], self._reader)
        if judged.verdict is not HintAction.LOOK:
            return judged
        followed = self._followed.get(hint.task_id)
        if followed is not None and followed.hint == hint:
            return HintDecision(verdict=HintAction.DROP, reason="duplicate")
        self._followed[hint.task_id] = _Followed(hint, delivery, time.monotonic())
        return judged

    async def _keep(self) -> None:
        await asyncio.sleep(KEEP_SECONDS)
        if self._followed:
            await self.keep_once()

    async def keep_once(self) -> None:
        """Extend hints of tasks that this worker runs, delete those of ended tasks, and release those that others may
        take.
        """
        now, followed = time.monotonic(), dict(self._followed)
        tasks = await self._find(list(followed))
        over: list[HintDelivery] = []
        renewed: list[HintDelivery] = []
        for task_id, followed_hint in followed.items():
            task = tasks[task_id]
            if (
                task.state == "r"
                and task.worker_id == self._reader.worker_id
                and task.attempt == followed_hint.hint.attempt
            ):
                if now - followed_hint.hidden_at >= self._renew_seconds:
                    followed_hint.hidden_at = now
                    renewed.append(followed_hint.delivery)
                continue
            if judge(followed_hint.hint, task, self._reader).verdict is HintAction.DROP:
                over.append(followed_hint.delivery)
            elif task.state == "q" and now - followed_hint.hidden_at < self._renew_seconds:
                continue
            self._followed.pop(task_id, None)
        await self._transport.extend(renewed)
        await self._transport.done(over)

    async def _find(self, task_ids: list[int]) -> dict[int, HintedTask]:
        return await find_hinted(self._database, task_ids)


async def find_hinted(database: Database, task_ids: Collection[int]) -> dict[int, HintedTask]:
    """Return the state of each task that hints name, including unknown ones."""
    if not task_ids:
        return {}
    rows = await outbox_sql.find_hinted(database, sorted(set(task_ids)))
    return {row.task_id: _hinted(row) for row in rows}


def _hinted(row: outbox_sql.FindHintedRow) -> HintedTask:
    fields = {name: value for name, value in row._asdict().items() if value is not None and name != "task_id"}
    return HintedTask(**{"state": None} | fields)
