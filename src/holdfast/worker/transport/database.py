"""The database transport: a worker with direct database access, using one session each to exchange, beat and listen."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.authoring.flow.registry import every_version
from holdfast.core.wakeups.hint import Reader
from holdfast.engine.engine import Engine
from holdfast.engine.launching.attach import attach
from holdfast.engine.leases import Claimed, Report, Settled, lock_timeouts_for
from holdfast.engine.lifecycle.runs.inputs import with_inputs
from holdfast.engine.lifecycle.tasks.claim import Claimer, WorkerIdentity, held_by
from holdfast.engine.lifecycle.tasks.exchange import Start, exchange, warm
from holdfast.engine.lifecycle.tasks.heartbeat import Beat, heartbeat
from holdfast.engine.lifecycle.tasks.settle_one_by_one import settle_together
from holdfast.engine.limits.declare import Guards, declare_guards
from holdfast.engine.notifications import Notifications
from holdfast.engine.publish import publish_and_propagate
from holdfast.engine.workers.declare import declare_action, declare_flows
from holdfast.errors import HoldfastError
from holdfast.execution.dataset_writer import Datasets, DeclaredDatasets
from holdfast.execution.effect_store import DatabaseEffectStore, EffectStore
from holdfast.execution.notes import Note, Notes, columns
from holdfast.store.catalog import Catalog
from holdfast.store.database import ANY_DB_ERROR, REFUSED, Database, Session
from holdfast.store.sql.queries import events as events_sql
from holdfast.store.sql.workers import workers as workers_sql
from holdfast.wakeups.carriers import addresses_of, is_external, open_transport
from holdfast.wakeups.consumer import Consumer
from holdfast.wakeups.listener import Listener
from holdfast.wakeups.notifier import STOP_CHANNEL, WAKE_CHANNEL
from holdfast.worker.runtime.declare_schedules import declare_schedules
from holdfast.worker.transport.contract import (
    ConnectedWorker,
    ExchangeResponse,
    HeartbeatChannel,
    LaneNames,
    SignOn,
    SignOnResult,
)

log = logging.getLogger("holdfast.worker")

BATCH_BYTES_MAX = 64 * 1024 * 1024


class DatabaseTransport:
    """A worker's transport over an open engine, which the caller owns."""

    def __init__(self, engine: Engine) -> None:
        self.settings = engine.settings
        self.outage = engine.database.outage
        self.names: LaneNames = engine.catalog
        self.effect_store: EffectStore = DatabaseEffectStore(engine)
        self.poll_seconds = engine.settings.worker.poll_seconds
        self.batch_bytes_max = BATCH_BYTES_MAX
        self.has_full_policies = True
        self.concurrent_exchanges = 1  # an exchange uses the session exclusively
        self.claimer = Claimer(WorkerIdentity(worker_id=0, actions=[], queues=None, lease_seconds=1.0))
        self._engine = engine
        self._worker_id = 0
        self.session: Session | None = None
        self._worker: ConnectedWorker | None = None
        self._listeners: Sequence[Listener | Consumer] = ()
        self._datasets: DeclaredDatasets | None = None
        self._propagating: set[asyncio.Task[None]] = set()

    async def sign_on(self, declaration: SignOn, worker: ConnectedWorker) -> SignOnResult:
        await self._declare(declaration)
        database, seconds = self._engine.database, self.settings.worker
        actions = declaration.claimed_actions
        row = await workers_sql.register_worker(
            database,
            declaration.name,
            declaration.version,
            declaration.queues,
            actions,
            declaration.slots,
            json.dumps(declaration.labels),
            self._engine.tenant_id,
            None,
        )
        self._worker_id = row.worker_id
        self.claimer = Claimer(
            WorkerIdentity(
                worker_id=self._worker_id,
                actions=actions,
                queues=declaration.queues,
                lease_seconds=seconds.lease_seconds,
            )
        )
        self._engine.notifier.make_ready()
        self._worker = worker
        self._listeners = self._new_listeners(declaration, worker)
        for listener in self._listeners:
            await listener.start()
        return SignOnResult(
            worker_id=self._worker_id,
            lease_seconds=seconds.lease_seconds,
            heartbeat_seconds=seconds.heartbeat_seconds,
        )

    def _new_listeners(self, declaration: SignOn, worker: ConnectedWorker) -> Sequence[Listener | Consumer]:
        """Return the listeners for new work: a PostgreSQL connection, or the carrier that the settings name."""
        wake, database = self.settings.wake, self._engine.database
        if not is_external(wake):
            return [Listener(database, WAKE_CHANNEL, worker.on_notification, also={STOP_CHANNEL: self._on_stop})]
        reader = Reader(
            worker_id=self._worker_id,
            tenant_id=self._engine.tenant_id,
            actions=frozenset(declaration.claimed_actions),
            queues=declaration.queues,
        )
        return [
            Consumer(
                open_transport(wake, address),
                database,
                reader,
                look=worker.claim_now,
                free=worker.claimable_slots,
                visibility_seconds=wake.visibility_seconds,
            )
            for address in addresses_of(wake, declaration.queues)
        ]

    def _on_stop(self, _turn: int, worker_ids: Sequence[int]) -> None:
        if self._worker is not None and self._worker_id in worker_ids:
            self._worker.request_heartbeat()

    async def _declare(self, declaration: SignOn) -> None:
        engine = self._engine
        defaults = engine.policy_defaults
        actions = declaration.actions
        rules = {name: action.rules(defaults) for name, action in actions.items()}
        for name, action in actions.items():
            where = (engine.catalog, engine.tenant_id, name)
            await declare_action(*where, rules[name], version=declaration.version, launcher=action.launcher)
        guards = {action.name: Guards(breaker=action.breaker, quota=action.quota) for action in actions.values()}
        await declare_guards(engine, engine.tenant_id, guards)
        flows = [flow.definition for flow in every_version(declaration.flows)]
        await declare_flows(engine.catalog, engine.tenant_id, flows, rules)
        await declare_schedules(engine, declaration.origin, declaration.schedules, actions)
        if self._datasets is not None:
            await self._datasets.declare()

    async def resume(self) -> Sequence[Claimed] | None:
        assert self._worker is not None
        if self.session is not None:
            return None
        self.session = await self._engine.database.connect(lock_timeouts_for(self.settings.worker.lease_seconds))
        await warm(self.session)
        found = await held_by(self.session, self.claimer.identity, self._worker.known_leases())
        return await with_inputs(self.session, self._engine.catalog, found)

    async def attach(self, task_id: int, attempt: int, token: str) -> Sequence[Claimed]:
        assert self.session is not None
        claimed = await attach(self.session, self.claimer.identity, task_id, attempt, token)
        return await with_inputs(self.session, self._engine.catalog, [claimed])

    async def exchange(
        self, reports: Sequence[Report], want: int, notes: Notes | None, *, now: float, start: Start
    ) -> ExchangeResponse:
        assert self.session is not None
        if notes:
            await notes.store(self._store_notes)
        catalog, claimer = self._engine.catalog, self.claimer
        done = await exchange(self.session, catalog, claimer, reports, want, now=now, tell=self._publish, start=start)
        return ExchangeResponse(
            settled=done.settled,
            claimed=done.claimed,
            may_have_more=claimer.may_have_more,
            has_missed=want > 0 and claimer.has_missed,
        )

    async def _store_notes(self, batch: list[Note]) -> None:
        assert self.session is not None
        try:
            await events_sql.add_notes(self.session, *columns(batch))
        except REFUSED as error:
            log.warning("%s notes cannot be stored: %s", len(batch), error)

    async def settle_alone(self, report: Report) -> Settled:
        async with self._engine.database.session() as session:
            settled = await settle_together(session, self._engine.catalog, [report])
        self._publish(settled.notifications)
        return settled

    def _publish(self, notifications: Notifications) -> None:
        """Send notifications of committed changes, and propagate them to parent runs and waits in the background.

        The maintenance loops also propagate them, later.
        """
        self._engine.notifier.notify(lanes=notifications.lanes, done=notifications.awaited, stops=notifications.stops)
        if notifications.children or notifications.waits:
            task = asyncio.create_task(self._propagate(notifications), name="holdfast-propagate")
            self._propagating.add(task)
            task.add_done_callback(self._propagating.discard)

    async def _propagate(self, notifications: Notifications) -> None:
        try:
            await publish_and_propagate(self._engine, notifications)
        except ANY_DB_ERROR as error:
            log.warning("could not propagate ended runs, the maintenance loops will: %s", error)

    async def propagated(self) -> None:
        """Wait until everything published so far is propagated, or left to the maintenance loops."""
        await asyncio.gather(*self._propagating, return_exceptions=True)

    def expect(self, lanes: Sequence[int]) -> None:
        self.claimer.expect(lanes, now=time.monotonic())

    def await_work(self, *, is_free: bool) -> None:
        """Do nothing: the listener is always active."""

    def drop(self) -> None:
        if self.session is not None:
            self.session.connection.terminate()
            self.session = None

    def heartbeat_channel(self) -> HeartbeatChannel:
        seconds = self.settings.worker.lease_seconds
        database = self._engine.database.apart()
        return DatabaseHeartbeats(database, self._engine.catalog, self._worker_id, lease_seconds=seconds)

    def declared_datasets(self, datasets: Datasets) -> DeclaredDatasets:
        self._datasets = DeclaredDatasets(self._engine.database, self.settings.tenant, datasets)
        return self._datasets

    async def sign_off(self, *, is_idle: bool) -> None:
        for listener in self._listeners:
            await listener.close()
        await self.propagated()
        try:
            if is_idle and self._worker_id:
                await workers_sql.retire_worker(self._engine.database, self._worker_id, False)
        except HoldfastError as error:
            log.warning("could not sign off: %s", error)
        if self.session is not None:
            await self.session.close()
        await self._engine.notifier.flush()


class DatabaseHeartbeats:
    """Sends heartbeats on its own session; created in one thread, used in the heartbeat thread."""

    def __init__(self, database: Database, catalog: Catalog, worker_id: int, *, lease_seconds: float) -> None:
        self._database = database
        self._catalog = catalog
        self._worker_id = worker_id
        self._lease_seconds = lease_seconds
        self._session: Session | None = None

    async def beat(self, leases: Mapping[int, Any], ended: Mapping[int, Any], health: str) -> Beat:
        session, seconds = await self._connected(), self._lease_seconds
        return await heartbeat(session, self._worker_id, leases, lease_seconds=seconds, health=health, ended=ended)

    async def hand_back(self, reports: Sequence[Report]) -> None:
        session = await self._connected()
        await settle_together(session, self._catalog, reports)

    async def _connected(self) -> Session:
        if self._session is None or self._session.is_closed():
            self._session = await self._database.connect(lock_timeouts_for(self._lease_seconds))
        return self._session

    def drop(self) -> None:
        if self._session is not None:
            with contextlib.suppress(Exception):
                self._session.connection.terminate()
            self._session = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
