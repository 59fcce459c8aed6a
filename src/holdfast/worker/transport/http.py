"""The HTTP transport: the worker's transport protocol, spoken to a server instead of the database.

It uses separate connections: some for exchanges, one for a long poll for work, the heartbeat's, and a few for the
effect store. Datasets are database rows and are not available here.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import msgspec

from holdfast.core.tasks.policy import PolicyDefaults, RetryPolicy
from holdfast.core.values import bounds as limits
from holdfast.engine.leases import NOTHING_SETTLED, Claimed, Refusal, Report, Settled
from holdfast.engine.lifecycle.tasks.exchange import Start
from holdfast.engine.lifecycle.tasks.heartbeat import Beat
from holdfast.engine.notifications import NO_NOTIFICATIONS
from holdfast.engine.workers.probe import LABEL as PROBE_LABEL
from holdfast.errors import HoldfastError, Invalid, Unavailable
from holdfast.execution.dataset_writer import Datasets, NoDatasets
from holdfast.execution.dataset_writer import DeclaredDatasets as DeclaredDatasets
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
    DeclaredAction,
    ExchangeAnswer,
    HandedTask,
    LeaveRequest,
    Register,
    Registered,
    Terms,
    Wait,
    WaitAnswer,
)
from holdfast.settings.settings import Settings
from holdfast.store.catalog import Lane
from holdfast.store.outage import Outage
from holdfast.worker.transport.contract import (
    ExchangeResponse,
    HeartbeatChannel,
    LaneNames,
    SignOn,
    SignOnResult,
    WorkerCallbacks,
)
from holdfast.worker.transport.http_connection import HttpConnection, Server
from holdfast.worker.transport.http_effects import HttpEffectStore
from holdfast.worker.transport.http_reports import completion

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
    calls = HttpConnection(Server.of(url, settings))
    try:
        terms = await calls.get("/internal/terms", Terms)
    finally:
        calls.drop()
    pace = replace(settings.worker, lease_seconds=terms.lease_seconds, heartbeat_seconds=terms.heartbeat_seconds)
    limits = replace(settings.limits, output_bytes_max=terms.output_bytes_max)
    return replace(settings, worker=pace, limits=limits)


class HttpLaneNames:
    """Lanes and policies as the server names them in tasks; the ids are local to this worker."""

    def __init__(self) -> None:
        self._lanes: list[Lane] = []
        self._policies: list[RetryPolicy] = []
        self._lane_ids: dict[tuple[str, str, str], int] = {}
        self._policy_ids: dict[tuple[float | None, int | None], int] = {}

    async def learn(self, lane_ids: Iterable[int], policy_ids: Iterable[int]) -> None:
        """Do nothing: each task brings its names."""

    def lane(self, lane_id: int) -> Lane:
        return self._lanes[lane_id]

    def policy(self, policy_id: int) -> RetryPolicy:
        return self._policies[policy_id]

    def claimed(self, task: HandedTask) -> Claimed:
        """Convert a task of the server to a `Claimed`. Only the server knows how much of its retry budget is used."""
        lane = (task.action, task.queue, task.tenant)
        if (lane_id := self._lane_ids.get(lane)) is None:
            lane_id = self._lane_ids[lane] = len(self._lanes)
            self._lanes.append(Lane(lane_id, *lane))
        bounds = (task.timeout_seconds, task.memory_bytes_max)
        if (policy_id := self._policy_ids.get(bounds)) is None:
            policy_id = self._policy_ids[bounds] = len(self._policies)
            self._policies.append(RetryPolicy(timeout_seconds=bounds[0], memory_bytes_max=bounds[1]))
        return Claimed(
            int(task.task_id),
            task.attempt,
            task.lease_token,
            lane_id,
            policy_id,
            task.attempt - 1,
            0,
            0,
            None if task.run_id is None else int(task.run_id),
            None,
            bytes(task.input),
            task.tags,
        )


class HttpTransport:
    """A worker's transport to `holdfast server`."""

    def __init__(self, url: str, settings: Settings) -> None:
        self._server = Server.of(url, settings)
        self._calls = HttpConnection(self._server)
        self._beside = [HttpConnection(self._server) for _ in range(CONCURRENT_EXCHANGES - 1)]
        self._waits, self._stops = HttpConnection(self._server), HttpConnection(self._server)
        self.settings = settings
        self.outage = Outage("the server")
        self.names: LaneNames = (names := HttpLaneNames())
        self.effect_store: EffectStore = (effect_store := HttpEffectStore(self._server))
        self._names, self._effect_store = names, effect_store
        self.poll_seconds = POLL_SECONDS
        self.batch_bytes_max = BATCH_BYTES_MAX
        self.decides = False
        self.concurrent_exchanges = CONCURRENT_EXCHANGES
        self._worker_id = ""
        self._wait_seconds_max = WAIT_SECONDS_UNTOLD
        self._heard: Callable[[int, Sequence[int]], None] = lambda _turn, _lanes: None
        self._beat: Callable[[], None] = lambda: None
        self._free: Callable[[], int] = lambda: 1
        self._is_resumed = False
        self._calls_in_vain = 0
        self._waiting: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    async def sign_on(self, signing: SignOn, body: WorkerCallbacks) -> SignOnResult:
        self._heard, self._beat, self._free = body.notify, body.beat, body.free
        if left_out := [word for word, some in (("flows", signing.flows), ("schedules", signing.schedules)) if some]:
            log.warning("%s are declared by workers that have the database, not over HTTP", " and ".join(left_out))
        probe_url = self.settings.worker.probe_url
        allowed = (await self._calls.get("/internal/terms", Allowed)).queues
        own = [one for one in signing.pulled if _is_served(signing.actions[one].queue, signing.queues, allowed)]
        asked = Register(
            worker_id=signing.name,
            queues=signing.queues,
            actions=signing.pulled,
            labels={} if probe_url is None else {PROBE_LABEL: probe_url},
            runtimes=["python"],
            slots=signing.slots,
            version=signing.version,
            declares=[_declared(signing.actions[name]) for name in own],
        )
        answer = await self._calls.post("/internal/workers", asked, Registered)
        self._worker_id, self._wait_seconds_max = answer.worker_id, answer.wait_seconds_max
        return SignOnResult(
            worker_id=int(answer.worker_id),
            lease_seconds=answer.lease_seconds,
            heartbeat_seconds=answer.heartbeat_seconds,
        )

    async def resume(self, known: Callable[[], Sequence[tuple[int, Any]]]) -> Sequence[Claimed] | None:
        if self._is_resumed:
            return None
        leases = known()
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
        answer = await self._calls.post("/internal/attach", body, Attached, may_repeat=False)
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
            return await self._apart(reports)
        if answer.tasks:
            self._calls_in_vain = 0
        return ExchangeResponse(
            settled=_settled(answer),
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

    async def _apart(self, reports: Sequence[Report]) -> ExchangeResponse:
        """Send each report alone, because the server refused one of the batch and it must not block the others."""
        settled = NOTHING_SETTLED
        for report in reports:
            try:
                alone = _settled(await self._exchange(self._batch([report], 0)))
            except Invalid as error:
                alone = Settled(
                    0, [Refusal(report.task_id, report.attempt, f"the server refused it: {error}")], NO_NOTIFICATIONS
                )
            settled = settled.and_(alone)
        return ExchangeResponse(settled=settled, claimed=(), may_have_more=True)

    async def _exchange(self, body: Batch) -> ExchangeAnswer:
        try:
            # Not repeated silently: what a lost response contained must be requested, which the next `resume` does.
            calls = next((one for one in (self._calls, *self._beside) if not one.is_busy), self._calls)
            return await calls.post("/internal/exchange", body, ExchangeAnswer, may_repeat=False)
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
        is_waiting = self._waiting is not None and not self._waiting.done()
        if is_free and not is_waiting:
            self._waiting = asyncio.create_task(self._wait(), name="holdfast-http-wait")
        elif not is_free and not is_waiting and (self._stopping is None or self._stopping.done()):
            self._stopping = asyncio.create_task(self._wait_for_stop(), name="holdfast-http-stop")

    async def _wait_for_stop(self) -> None:
        """Long-poll for requests to stop an attempt while no slot is free. Otherwise `_wait` receives them."""
        while not self._free():
            seconds = self._wait_seconds_max * random.uniform(*WAIT_PARTS)
            body = Wait(self._worker_id, wait_seconds=seconds, takes_work=False)
            try:
                hint = await self._stops.post("/internal/wait", body, WaitAnswer, seconds_max=seconds + LATE_SECONDS)
            except HoldfastError as error:
                log.debug("could not wait for stops at the server: %s", error)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if hint.stop:
                self._beat()

    async def _wait(self) -> None:
        """Long-poll until the server answers that there may be work."""
        if self._calls_in_vain:
            await asyncio.sleep(min(PAUSE_SECONDS, PAUSE_SECONDS_FIRST * 2**self._calls_in_vain))
        while True:
            asked_at = time.monotonic()
            try:
                # Wait times are random, so that workers that came together after a restart do not come back together.
                seconds = self._wait_seconds_max * random.uniform(*WAIT_PARTS)
                body, seconds_max = Wait(self._worker_id, wait_seconds=seconds), seconds + LATE_SECONDS
                hint = await self._waits.post("/internal/wait", body, WaitAnswer, seconds_max=seconds_max)
            except HoldfastError as error:
                log.debug("could not wait for work at the server: %s", error)
                hint = WaitAnswer(work=True)
                await asyncio.sleep(PAUSE_SECONDS)
            if hint.stop:
                self._beat()
            if hint.work:
                is_at_once = time.monotonic() - asked_at < AT_ONCE_SECONDS
                self._calls_in_vain = min(10, self._calls_in_vain + 1) if is_at_once else 0
                self._heard(0, ())
                return
            if hint.draining:
                await asyncio.sleep(PAUSE_SECONDS)

    def drop(self) -> None:
        for calls in (self._calls, *self._beside):
            calls.drop()
        self._is_resumed = False

    def pulse(self) -> HeartbeatChannel:
        return HttpHeartbeats(self._server, self._worker_id)

    def declared(self, datasets: Datasets) -> DeclaredDatasets:
        return NoDatasets()

    async def sign_off(self, *, is_idle: bool) -> None:
        for waiting in (self._waiting, self._stopping):
            if waiting is not None:
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
        try:
            if is_idle and self._worker_id:
                await self._calls.post(
                    "/internal/leave", LeaveRequest(self._worker_id), dict[str, Any], seconds_max=5.0
                )
        except HoldfastError as error:
            log.warning("could not sign off: %s", error)
        for calls in (self._calls, *self._beside, self._waits, self._stops):
            calls.drop()
        self._effect_store.drop()


class HttpHeartbeats:
    """Sends heartbeats on its own connection; created in one thread, used in the heartbeat thread."""

    def __init__(self, server: Server, worker_id: str) -> None:
        self._calls = HttpConnection(server)
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
        answer = await self._calls.post("/internal/heartbeats", body, BeatAnswer)
        renewed, busy = (frozenset(map(int, some)) for some in (answer.renewed, answer.busy))
        return Beat(
            renewed=renewed,
            lost=frozenset(leases) - renewed - busy,
            busy=busy,
            canceled=frozenset(map(int, answer.canceled)),
            worker_state=answer.worker_state,
            crew=answer.crew,
            rank=answer.rank,
            lease_seconds=answer.lease_seconds,
            kept=frozenset(map(int, answer.kept)),
        )

    async def hand_back(self, reports: Sequence[Report]) -> None:
        body = Batch(self._worker_id, held=None, completions=[completion(report) for report in reports])
        await self._calls.post("/internal/exchange", body, ExchangeAnswer)

    def drop(self) -> None:
        self._calls.drop()

    async def close(self) -> None:
        self._calls.drop()


def _is_served(queue: str, *served: Sequence[str] | None) -> bool:
    """Return whether the worker serves the queue and its token allows it; None allows every queue."""
    return all(names is None or queue in names for names in served)


def _declared(action: Any) -> DeclaredAction:
    """Return what the code declares about an action. The server's settings decide the rest."""
    policy = action.policy(PolicyDefaults()).to_json()
    # The server does not know launchers, nor what they mean for retries.
    said = [*action.overrides, *(() if action.launcher is None else ("max_retries",))]
    return DeclaredAction(
        action=action.name,
        queue=action.queue,
        priority=action.priority,
        policy={name: policy[name] for name in said if name in policy},
        breaker=None if action.breaker is None else asdict(action.breaker),
        quota=None if action.quota is None else asdict(action.quota),
    )


def _settled(answer: ExchangeAnswer) -> Settled:
    refused = [Refusal(int(one.task_id), one.attempt, one.winner) for one in answer.refused]
    return Settled(answer.accepted, refused, NO_NOTIFICATIONS)
