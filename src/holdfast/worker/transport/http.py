"""The HTTP transport: the worker's transport protocol, spoken to a server instead of the database.

It uses separate connections: some for exchanges, one for a long poll for work, the heartbeat's, and a few for the
effect store. Datasets are database rows and are not available here.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from holdfast.core.values import bounds as limits
from holdfast.engine.leases import NOTHING_SETTLED, Claimed, Refusal, Report, Settled
from holdfast.engine.lifecycle.tasks.exchange import Start
from holdfast.engine.lifecycle.tasks.heartbeat import Beat
from holdfast.engine.notifications import NO_NOTIFICATIONS
from holdfast.errors import HoldfastError, Invalid, Unavailable
from holdfast.execution.dataset_writer import Datasets, DeclaredDatasets, NoDatasets
from holdfast.execution.effect_store import EffectStore
from holdfast.execution.notes import Notes
from holdfast.protocol.worker import (
    WAIT_SECONDS_UNTOLD,
    Allowed,
    Attach,
    Attached,
    Batch,
    BeatAnswer,
    BeatRequest,
    ExchangeAnswer,
    LeaveRequest,
    Register,
    Registered,
    Terms,
    Wait,
    WaitAnswer,
)
from holdfast.settings.settings import Settings
from holdfast.store.outage import Outage
from holdfast.worker.transport.contract import (
    ConnectedWorker,
    ExchangeResponse,
    HeartbeatChannel,
    LaneNames,
    SignOn,
    SignOnResult,
)
from holdfast.worker.transport.http_connection import HttpConnection, Server
from holdfast.worker.transport.http_effects import HttpEffectStore
from holdfast.worker.transport.http_messages import HttpLaneNames, completion, declared_action, settled_of

log = logging.getLogger("holdfast.worker")

BATCH_BYTES_MAX = 16 * 1024 * 1024
CONCURRENT_EXCHANGES = 4
"""Concurrent exchanges: while one waits for the network or the disk, the next are prepared."""
POLL_SECONDS = 15.0
"""The server notifies waiting workers; this poll covers a server that lost the registration of a wait."""
PAUSE_SECONDS_FIRST, PAUSE_SECONDS = 0.02, 1.0
"""Pause after long polls that returned at once without work (a limit, a breaker on trial), doubled each time; after a
failure.
"""
AT_ONCE_SECONDS = 0.1
WAIT_PARTS = (0.8, 1.0)
"""Range of the share of the longest wait that one request asks for."""
LATE_SECONDS = 10.0
"""How much later than requested a server may answer a long poll."""


async def fetch_terms(url: str, settings: Settings) -> Settings:
    """Return the settings for a worker of this server: the server decides times and limits."""
    connection = HttpConnection(Server.of(url, settings))
    try:
        terms = await connection.get("/internal/terms", Terms)
    finally:
        connection.drop()
    worker = replace(settings.worker, lease_seconds=terms.lease_seconds, heartbeat_seconds=terms.heartbeat_seconds)
    limits = replace(settings.limits, output_bytes_max=terms.output_bytes_max)
    return replace(settings, worker=worker, limits=limits)


class HttpTransport:
    """A worker's transport to `holdfast server`."""

    def __init__(self, url: str, settings: Settings) -> None:
        self._server = Server.of(url, settings)
        self._connection = HttpConnection(self._server)
        self._additional_connections = [HttpConnection(self._server) for _ in range(CONCURRENT_EXCHANGES - 1)]
        self._work_connection = HttpConnection(self._server)
        self._stop_connection = HttpConnection(self._server)
        self.settings = settings
        self.outage = Outage("the server")
        self._names, self._effect_store = HttpLaneNames(), HttpEffectStore(self._server)
        self.names: LaneNames = self._names
        self.effect_store: EffectStore = self._effect_store
        self.poll_seconds = POLL_SECONDS
        self.batch_bytes_max = BATCH_BYTES_MAX
        self.has_full_policies = False
        self.concurrent_exchanges = CONCURRENT_EXCHANGES
        self._worker_id = ""
        self._wait_seconds_max = WAIT_SECONDS_UNTOLD
        self._worker: ConnectedWorker | None = None
        self._is_resumed = False
        self._false_wakeups = 0
        self._work_poll: asyncio.Task[None] | None = None
        self._stop_poll: asyncio.Task[None] | None = None

    async def sign_on(self, declaration: SignOn, worker: ConnectedWorker) -> SignOnResult:
        self._worker = worker
        ignored = {"flows": declaration.flows, "schedules": declaration.schedules}
        if names := [name for name, values in ignored.items() if values]:
            log.warning("%s are declared by workers that have the database, not over HTTP", " and ".join(names))
        allowed = (await self._connection.get("/internal/terms", Allowed)).queues
        actions = [declaration.actions[name] for name in declaration.claimed_actions]
        served = [action for action in actions if _is_served(action.queue, declaration.queues, allowed)]
        request = Register(
            worker_id=declaration.name,
            queues=declaration.queues,
            actions=declaration.claimed_actions,
            labels=dict(declaration.labels),
            runtimes=["python"],
            slots=declaration.slots,
            version=declaration.version,
            declares=[declared_action(action) for action in served],
        )
        answer = await self._connection.post("/internal/workers", request, Registered)
        self._worker_id, self._wait_seconds_max = answer.worker_id, answer.wait_seconds_max
        return SignOnResult(
            worker_id=int(answer.worker_id),
            lease_seconds=answer.lease_seconds,
            heartbeat_seconds=answer.heartbeat_seconds,
        )

    async def resume(self) -> Sequence[Claimed] | None:
        assert self._worker is not None
        if self._is_resumed:
            return None
        leases = self._worker.known_leases()
        body = Batch(
            self._worker_id,
            held=None,
            known=[token for _, token in leases],
            known_tasks=[str(task_id) for task_id, _ in leases],
        )
        answer = await self._exchange(body)
        self._is_resumed = True
        return [self._names.claimed(task) for task in answer.tasks]

    async def attach(self, task_id: int, attempt: int, token: str) -> Sequence[Claimed]:
        body = Attach(self._worker_id, str(task_id), token, attempt)
        answer = await self._connection.post("/internal/attach", body, Attached, may_repeat=False)
        return [self._names.claimed(task) for task in answer.tasks]

    async def exchange(
        self, reports: Sequence[Report], want: int, notes: Notes | None, *, now: float, start: Start
    ) -> ExchangeResponse:
        if notes:
            await notes.store(self._effect_store.keep_notes)
        if not reports and not want:
            return ExchangeResponse(settled=NOTHING_SETTLED, claimed=(), may_have_more=False)
        try:
            answer = await self._exchange(self._batch(reports, want))
        except Invalid:
            if not reports:
                raise
            return await self._exchange_one_by_one(reports)
        if answer.tasks:
            self._false_wakeups = 0
        return ExchangeResponse(
            settled=settled_of(answer),
            claimed=[self._names.claimed(task) for task in answer.tasks],
            may_have_more=answer.more,
        )

    def _batch(self, reports: Sequence[Report], want: int) -> Batch:
        return Batch(
            self._worker_id,
            held=None,
            completions=[completion(report) for report in reports],
            limit=min(want, limits.BATCH_MAX),
        )

    async def _exchange_one_by_one(self, reports: Sequence[Report]) -> ExchangeResponse:
        """Send each report alone, because the server refused one of the batch and it must not block the others."""
        settled = NOTHING_SETTLED
        for report in reports:
            try:
                result = settled_of(await self._exchange(self._batch([report], 0)))
            except Invalid as error:
                result = Settled(
                    0, [Refusal(report.task_id, report.attempt, f"the server refused it: {error}")], NO_NOTIFICATIONS
                )
            settled = settled.and_(result)
        return ExchangeResponse(settled=settled, claimed=(), may_have_more=True)

    async def _exchange(self, body: Batch) -> ExchangeAnswer:
        try:
            # Not repeated silently: what a lost response contained must be requested, which the next `resume` does.
            connections = (self._connection, *self._additional_connections)
            connection = next((free for free in connections if not free.is_busy), self._connection)
            return await connection.post("/internal/exchange", body, ExchangeAnswer, may_repeat=False)
        except (Invalid, Unavailable):
            raise
        except HoldfastError as error:
            # The worker is unknown or no longer authorized. The heartbeat gets the same response and decides.
            raise Unavailable(error.detail, code=error.code, advice=error.advice) from error

    async def settle_alone(self, report: Report) -> Settled:
        raise AssertionError("nothing is committed to datasets over HTTP")

    def expect(self, lanes: Sequence[int]) -> None:
        """Do nothing: the server knows which lanes to try."""

    def await_work(self, *, is_free: bool) -> None:
        is_polling = self._work_poll is not None and not self._work_poll.done()
        if is_free and not is_polling:
            self._work_poll = asyncio.create_task(self._poll_for_work(), name="holdfast-http-wait")
        elif not is_free and not is_polling and (self._stop_poll is None or self._stop_poll.done()):
            self._stop_poll = asyncio.create_task(self._poll_for_stop(), name="holdfast-http-stop")

    async def _poll_for_stop(self) -> None:
        """Long-poll for requests to stop an attempt while no slot is free. Otherwise `_poll_for_work` gets them."""
        assert self._worker is not None
        while not self._worker.claimable_slots():
            seconds = self._wait_seconds_max * random.uniform(*WAIT_PARTS)
            body = Wait(self._worker_id, wait_seconds=seconds, takes_work=False)
            try:
                hint = await self._stop_connection.post(
                    "/internal/wait", body, WaitAnswer, seconds_max=seconds + LATE_SECONDS
                )
            except HoldfastError as error:
                log.debug("could not wait for stops at the server: %s", error)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if hint.stop:
                self._worker.request_heartbeat()

    async def _poll_for_work(self) -> None:
        """Long-poll until the server answers that there may be work."""
        assert self._worker is not None
        if self._false_wakeups:
            await asyncio.sleep(min(PAUSE_SECONDS, PAUSE_SECONDS_FIRST * 2**self._false_wakeups))
        while True:
            sent_at = time.monotonic()
            try:
                # Wait times are random, so that workers that came together after a restart do not come back together.
                seconds = self._wait_seconds_max * random.uniform(*WAIT_PARTS)
                body, seconds_max = Wait(self._worker_id, wait_seconds=seconds), seconds + LATE_SECONDS
                hint = await self._work_connection.post("/internal/wait", body, WaitAnswer, seconds_max=seconds_max)
            except HoldfastError as error:
                log.debug("could not wait for work at the server: %s", error)
                hint = WaitAnswer(work=True)
                await asyncio.sleep(PAUSE_SECONDS)
            if hint.stop:
                self._worker.request_heartbeat()
            if hint.work:
                is_at_once = time.monotonic() - sent_at < AT_ONCE_SECONDS
                self._false_wakeups = min(10, self._false_wakeups + 1) if is_at_once else 0
                self._worker.on_notification(0, ())
                return
            if hint.draining:
                await asyncio.sleep(PAUSE_SECONDS)

    def drop(self) -> None:
        for connection in (self._connection, *self._additional_connections):
            connection.drop()
        self._is_resumed = False

    def heartbeat_channel(self) -> HeartbeatChannel:
        return HttpHeartbeats(self._server, self._worker_id)

    def declared_datasets(self, datasets: Datasets) -> DeclaredDatasets:
        return NoDatasets()

    async def sign_off(self, *, is_idle: bool) -> None:
        for poll in (self._work_poll, self._stop_poll):
            if poll is not None:
                poll.cancel()
                await asyncio.gather(poll, return_exceptions=True)
        try:
            if is_idle and self._worker_id:
                leaving = LeaveRequest(self._worker_id)
                await self._connection.post("/internal/leave", leaving, dict[str, Any], seconds_max=5.0)
        except HoldfastError as error:
            log.warning("could not sign off: %s", error)
        self.drop()
        self._work_connection.drop()
        self._stop_connection.drop()
        self._effect_store.drop()


class HttpHeartbeats:
    """Sends heartbeats on its own connection; created in one thread, used in the heartbeat thread."""

    def __init__(self, server: Server, worker_id: str) -> None:
        self._connection = HttpConnection(server)
        self._worker_id = worker_id

    async def beat(self, leases: Mapping[int, Any], ended: Mapping[int, Any], health: str) -> Beat:
        body = BeatRequest(
            worker_id=self._worker_id,
            task_ids=list(map(str, leases)),
            lease_tokens=list(leases.values()),
            ended_ids=list(map(str, ended)),
            ended_tokens=list(ended.values()),
            health=msgspec.json.decode(health),
        )
        answer = await self._connection.post("/internal/heartbeats", body, BeatAnswer)
        renewed, busy = (frozenset(map(int, task_ids)) for task_ids in (answer.renewed, answer.busy))
        return Beat(
            renewed=renewed,
            lost=frozenset(leases) - renewed - busy,
            busy=busy,
            canceled=frozenset(map(int, answer.canceled)),
            worker_state=answer.worker_state,
            peers=answer.crew,
            rank=answer.rank,
            lease_seconds=answer.lease_seconds,
            kept=frozenset(map(int, answer.kept)),
        )

    async def hand_back(self, reports: Sequence[Report]) -> None:
        body = Batch(self._worker_id, held=None, completions=[completion(report) for report in reports])
        await self._connection.post("/internal/exchange", body, ExchangeAnswer)

    def drop(self) -> None:
        self._connection.drop()

    async def close(self) -> None:
        self._connection.drop()


def _is_served(queue: str, *served: Sequence[str] | None) -> bool:
    """Return whether the worker serves the queue and its token allows it; None allows every queue."""
    return all(names is None or queue in names for names in served)
