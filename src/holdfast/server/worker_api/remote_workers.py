"""The worker contract for remote workers, which keep only their leases.

A worker in this process keeps what a claim returned until it reports. A worker behind HTTP names only task, attempt and
token, so the rest is read again here. The engine operations are the same, and so is the fence.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from uuid import UUID

import msgspec

from holdfast.core.identity.access import ANY_WORKER, WorkerRight
from holdfast.core.values import bounds
from holdfast.engine.engine import Engine
from holdfast.engine.launching.attach import attach
from holdfast.engine.leases import NOTHING_SETTLED, Claimed, Report, Settled, lock_timeouts_for
from holdfast.engine.lifecycle.runs.inputs import with_inputs
from holdfast.engine.lifecycle.tasks.claim import held_task, sees_work
from holdfast.engine.lifecycle.tasks.claim_named import claim_task
from holdfast.engine.lifecycle.tasks.exchange import exchange
from holdfast.engine.lifecycle.tasks.heartbeat import Beat, keep_leases, renew_all, renew_ended
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.engine.maintenance.loops import Loops
from holdfast.engine.publish import publish_and_propagate
from holdfast.errors import LeaseLost
from holdfast.protocol.worker import HandedTask, WaitAnswer
from holdfast.server.worker_api.answers import Exchange, RenewedLease, TakenTasks
from holdfast.server.worker_api.completed_reports import CompletedReport, Reports
from holdfast.server.worker_api.effect_calls import RemoteEffects
from holdfast.server.worker_api.listed_leases import find_unlisted, renew_listed
from holdfast.server.worker_api.sessions import RemoteWorkerSession, RemoteWorkerSessions, beat_workers
from holdfast.server.worker_api.task_handout import TaskHandout
from holdfast.server.worker_api.wait_registry import STOPPED, Lanes, WaitRegistry
from holdfast.store.database import LOCK_TIMEOUT, Database, Session
from holdfast.store.session import first
from holdfast.store.sql.tasks import lease as lease_sql
from holdfast.store.sql.workers import workers as workers_sql

CLAIM_MAX = 1_000
CredentialCheck = Callable[[], Awaitable[None]]

SESSIONS_MAX = 8
"""Sessions for claims and exchanges of one server, in addition to its pool for everything else."""


class RemoteWorkers:
    """The worker contract on one engine. Any number of servers may offer it: all state here is a cache.

    As a context manager, it opens its own sessions for the frequent calls (thousands per second).
    """

    def __init__(
        self, engine: Engine, *, wait_registry: WaitRegistry | None = None, busy: Database | None = None
    ) -> None:
        """Use the given `wait_registry` and `busy`, which a server shares between tenants; create them if missing."""
        self._engine = engine
        self._lease_seconds = engine.settings.worker.lease_seconds
        self.effect_store = RemoteEffects(engine)
        self._reports = Reports(engine)
        self._handing = TaskHandout(engine)
        self._busy = busy or engine.database
        self.wait_registry = wait_registry or WaitRegistry(
            engine.database, engine.catalog, poll_seconds=engine.settings.worker.poll_seconds, alive=self._alive
        )
        self.worker_sessions = RemoteWorkerSessions(
            engine.tenant_id, self.wait_registry, lease_seconds=self._lease_seconds
        )

    async def __aenter__(self) -> RemoteWorkers:
        database, lock_timeouts = self._engine.database, lock_timeouts_for(self._lease_seconds)
        self._busy = database.apart(sessions_max=SESSIONS_MAX, repeats_itself=True, patience=lock_timeouts)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        busy, self._busy = self._busy, self._engine.database
        await self.wait_registry.close()
        await busy.close()

    async def register(
        self,
        *,
        name: str,
        actions: Sequence[str],
        queues: Sequence[str] | None,
        slots: int,
        version: str,
        labels: str,
        token_id: str = "",
    ) -> int:
        """Register a worker; return the id to use from now on."""
        named = [bounds.valid_action(action) for action in actions]
        served = None if queues is None else [bounds.valid_queue(queue) for queue in queues]
        row = await workers_sql.register_worker(
            self._engine.database, name, version, served, named, slots, labels, self._engine.tenant_id, token_id or None
        )
        return int(row.worker_id)

    async def retire(self, worker_id: int, *, was_asked_to_stop: bool = False, right: WorkerRight = ANY_WORKER) -> bool:
        """Retire a worker that left or died, and requeue its tasks now. Return whether it was known."""
        known = await workers_sql.read_worker(self._engine.database, worker_id)
        if known is not None:
            right.require(worker_id, queues=known.queues, token_id=known.token_id)
        row = first(await workers_sql.retire_worker(self._engine.database, worker_id, was_asked_to_stop))
        if row is not None:
            await Loops(self._engine).retire_worker()
        return row is not None

    async def claim_named(self, worker_id: int, task_id: int, *, right: WorkerRight = ANY_WORKER) -> list[HandedTask]:
        """Claim one named task, or raise why not (`Conflict` with `reason`, `NotFound`, `Forbidden`).

        A worker that already has the task gets it again: it asks because the response was lost.
        """
        async with self._engine.database.session() as session:
            worker_session = await self.worker_sessions.find(session, worker_id, None, right)
            async with session.transaction():
                held = await held_task(session, worker_session.identity, task_id)
                claimed = held or await claim_task(session, worker_session.identity, task_id)
                await self._handing.require_queue(session, claimed, right.queues)
            found = await with_inputs(session, self._engine.catalog, [claimed])
            return await self._handing.hand_out(session, found, with_lease_ends=True)

    async def attach(
        self, worker_id: int, task_id: int, attempt: int, token: str, *, right: WorkerRight = ANY_WORKER
    ) -> list[HandedTask]:
        """Exchange the one-shot token of a launch for its lease; raise `LeaseLost` if it is not valid (any more)."""
        async with self._engine.database.session() as session:
            worker_session = await self.worker_sessions.find(session, worker_id, None, right)
            async with session.transaction():
                claimed = await attach(session, worker_session.identity, task_id, attempt, token)
                await self._handing.require_queue(session, claimed, right.queues)
            found = await with_inputs(session, self._engine.catalog, [claimed])
            return await self._handing.hand_out(session, found, with_lease_ends=True)

    async def heartbeat(self, task_id: int, attempt: int, lease_token: UUID) -> RenewedLease:
        """Extend one lease, unless its row is locked; raise `LeaseLost` if it expired or was never this attempt's."""
        async with self._engine.database.transaction() as session:
            row = await lease_sql.heartbeat_task(session, task_id, attempt, lease_token, self._lease_seconds)
            if row is None:
                raise LeaseLost(
                    f"Attempt {attempt} of task {task_id} no longer holds the lease.",
                    advice="Stop the work; its result would be refused.",
                    task_id=str(task_id),
                )
            await workers_sql.beat_workers(session, [row.worker_id], None)
        return RenewedLease(
            lease_expires_at=row.lease_expires_at, cancel_requested=row.cancel_requested, is_busy=row.is_busy
        )

    async def beat(
        self,
        worker_id: int,
        task_ids: Sequence[int],
        tokens: Sequence[UUID],
        *,
        health: str,
        ended: Mapping[int, UUID] | None = None,
        right: WorkerRight = ANY_WORKER,
    ) -> Beat:
        """Extend the leases a worker has running or unreported, and record its health. `right` as for a claim."""
        late = ended or {}
        async with self._busy.session() as session:
            await self.worker_sessions.require(session, worker_id, right)
            found = await renew_all(session, task_ids, tokens, lease_seconds=self._lease_seconds)
            kept = await renew_ended(session, list(late.keys()), list(late.values()), lease_seconds=self._lease_seconds)
            worker = first(await workers_sql.beat_workers(session, [worker_id], health))
        if worker is not None:
            self.worker_sessions.note_state(worker_id, worker.state)
            if worker.state != "active":
                self.wait_registry.end_waits([worker_id])
        return Beat(
            renewed=found.renewed,
            lost=frozenset(task_ids) - found.renewed - found.busy,
            canceled=found.canceled,
            busy=found.busy,
            worker_state=None if worker is None else worker.state,
            lease_seconds=self._lease_seconds,
            kept=kept,
        )

    async def complete(self, done: CompletedReport) -> None:
        """Settle one attempt; raise `LeaseLost` naming the winner if the fence refused it."""
        await self._reports.prepare()
        async with self._busy.session() as session:
            reports, settled = await self._settle(session, done)
        self._engine.failures.publish_all(self._engine.catalog, reports, settled.refused)
        await publish_and_propagate(self._engine, settled.notifications)
        if settled.refused:
            [refusal] = settled.refused
            raise LeaseLost(
                f"Attempt {done.attempt} of task {done.task_id} was not accepted: {refusal.winner}.",
                advice="Another attempt decides the result; discard this one.",
                task_id=str(done.task_id),
                winner=refusal.winner,
            )

    async def _settle(self, session: Session, done: CompletedReport) -> tuple[Sequence[Report], Settled]:
        reports: Sequence[Report] = ()
        try:
            async with session.transaction():
                reports = await self._reports.of(session, [done])
                return reports, await settle(session, self._engine.catalog, reports)
        except LOCK_TIMEOUT:
            await keep_leases(session, reports, lease_seconds=self._lease_seconds)
            raise

    async def exchange(
        self,
        worker_id: int,
        *,
        held: Sequence[int] | None,
        dones: Sequence[CompletedReport],
        queues: Sequence[str] | None,
        limit: int,
        known: Sequence[tuple[int, UUID]] | None = None,
        wait_seconds: float = 0.0,
        with_lease_ends: bool | None = None,
        right: WorkerRight = ANY_WORKER,
        check_credentials: CredentialCheck | None = None,
    ) -> Exchange:
        """Settle, renew and claim in one call.

        Tasks that the worker has leased and did not name are returned again, because the response with them was lost: a
        worker that names its tasks has only one such call under way. With `held` None nothing is renewed, and only
        leases that `known` (all its tokens) does not contain are searched for. While there is nothing to return, the
        response waits up to `wait_seconds`; `check_credentials` raises if the caller's credentials became invalid
        meanwhile. `right` names the only queues its caller may serve; other queues raise `Forbidden`. A draining worker
        gets no tasks.
        """
        until = time.monotonic() + wait_seconds
        if wait_seconds > 0:
            await self.wait_registry.open()
        with_lease_ends = held is not None if with_lease_ends is None else with_lease_ends
        await self._reports.prepare()
        async with self._busy.session() as session:
            worker_session = await self.worker_sessions.find(
                session, worker_id, queues, right, is_brief=held is None and (wait_seconds > 0 or not with_lease_ends)
            )
            group = worker_session.wait_group
            answer = await renew_listed(session, worker_id, held, lease_seconds=self._lease_seconds)
            unlisted = await self._find_unlisted(session, worker_session, held, dones, known)
            want = (
                0 if worker_session.is_draining else max(0, min(limit, worker_session.slots, CLAIM_MAX) - len(unlisted))
            )
            notification_count = group.notification_count
            claims_now = bool(dones) or wait_seconds <= 0 or not self.wait_registry.is_known_empty(group)
            taken = await self._take(session, worker_session, dones, want if claims_now else 0)
            tasks = await self._handing.hand_out(session, [*unlisted, *taken.claimed], with_lease_ends=with_lease_ends)
        await publish_and_propagate(self._engine, taken.settled.notifications)
        answer = msgspec.structs.replace(
            answer,
            tasks=tasks,
            accepted=taken.settled.accepted,
            refused=taken.settled.refused,
            is_draining=worker_session.is_draining,
            may_have_more=taken.may_have_more,
        )
        while want and answer.is_silent and (left := until - time.monotonic()) > 0:
            lanes = await self.wait_registry.wait(group, worker_id, left, notification_count=notification_count)
            if lanes is None:
                break
            if lanes is STOPPED:
                answer = await self._renew_again(answer, worker_id, held)
                continue
            notification_count = group.notification_count
            if check_credentials is not None:
                await self._check_credentials(check_credentials, worker_session, lanes)
            found = await self._claim_woken(worker_id, worker_session, want, lanes, with_lease_ends=with_lease_ends)
            if found is None:
                break
            tasks, may_have_more = found
            answer = msgspec.structs.replace(answer, tasks=tasks, may_have_more=may_have_more)
        if answer.is_draining != worker_session.is_draining:
            answer = msgspec.structs.replace(answer, is_draining=worker_session.is_draining)
        return answer

    async def wait(
        self,
        worker_id: int,
        *,
        queues: Sequence[str] | None,
        wait_seconds: float,
        right: WorkerRight = ANY_WORKER,
        takes_work: bool = True,
    ) -> WaitAnswer:
        """Wait until there may be work, if the worker `takes_work`, or until an attempt of the worker should stop."""
        await self.wait_registry.open()
        async with self._busy.session() as session:
            worker_session = await self.worker_sessions.find(session, worker_id, queues, right, is_brief=True)
            notification_count = worker_session.wait_group.notification_count
            if worker_session.is_draining and takes_work:
                return WaitAnswer(work=False, draining=True)
            may_see_work = takes_work and not self.wait_registry.is_known_empty(worker_session.wait_group)
            if may_see_work and await sees_work(session, worker_session.identity):
                return WaitAnswer(work=True)
        if not takes_work:
            lanes = await self.wait_registry.wait(None, worker_id, wait_seconds, notification_count=notification_count)
            return WaitAnswer(work=False, draining=worker_session.is_draining, stop=lanes is STOPPED)
        self.wait_registry.looked(worker_session.wait_group, notification_count, is_more=False)
        lanes = await self.wait_registry.wait(
            worker_session.wait_group, worker_id, wait_seconds, notification_count=notification_count
        )
        if lanes is STOPPED:
            return WaitAnswer(work=False, draining=worker_session.is_draining, stop=True)
        if lanes is not None and worker_session.is_draining:
            self.wait_registry.wake_next(worker_session.wait_group, lanes)
        return WaitAnswer(
            work=lanes is not None and not worker_session.is_draining, draining=worker_session.is_draining
        )

    async def _renew_again(self, answer: Exchange, worker_id: int, held: Sequence[int] | None) -> Exchange:
        """Renew again, because an attempt of a waiting worker was asked to stop; the result says which."""
        async with self._busy.session() as session:
            found = await renew_listed(session, worker_id, held, lease_seconds=self._lease_seconds)
        return msgspec.structs.replace(answer, lost=found.lost, canceled=found.canceled, busy=found.busy)

    async def _find_unlisted(
        self,
        session: Session,
        worker_session: RemoteWorkerSession,
        held: Sequence[int] | None,
        dones: Sequence[CompletedReport],
        known: Sequence[tuple[int, UUID]] | None,
    ) -> list[Claimed]:
        reported = [done.task_id for done in dones]
        identity, catalog = worker_session.identity, self._engine.catalog
        return await find_unlisted(session, catalog, identity, held, reported, known, lease_seconds=self._lease_seconds)

    async def _take(
        self,
        session: Session,
        worker_session: RemoteWorkerSession,
        dones: Sequence[CompletedReport],
        want: int,
        *,
        lanes: Lanes | None = None,
    ) -> TakenTasks:
        if not dones and not want:
            return TakenTasks([], NOTHING_SETTLED, may_have_more=False)
        notification_count = worker_session.wait_group.notification_count
        reports = await self._reports.of(session, dones)
        with worker_session.claiming() as claimer:
            if lanes is not None:
                claimer.expect(lanes, now=time.monotonic())
            done = await exchange(session, self._engine.catalog, claimer, reports, want, now=time.monotonic())
            may_have_more = bool(want) and claimer.may_have_more
        self._engine.failures.publish_all(self._engine.catalog, reports, done.settled.refused)
        if want:
            self.wait_registry.looked(
                worker_session.wait_group,
                notification_count,
                is_more=bool(done.claimed) and may_have_more,
                has_missed=claimer.has_missed,
            )
        return TakenTasks(done.claimed, done.settled, may_have_more)

    async def _check_credentials(
        self, check: CredentialCheck, worker_session: RemoteWorkerSession, lanes: Lanes
    ) -> None:
        """Check the credentials of a waiting worker before it claims; if they are invalid, wake the next worker."""
        try:
            await check()
        except BaseException:
            self.wait_registry.wake_next(worker_session.wait_group, lanes)
            raise

    async def _claim_woken(
        self, worker_id: int, worker_session: RemoteWorkerSession, want: int, lanes: Lanes, *, with_lease_ends: bool
    ) -> tuple[list[HandedTask], bool] | None:
        """Claim again for a waiting worker that was woken. Return its tasks, and whether there may be more.

        Return None if the worker may not claim any more; the next one is woken instead.
        """
        async with self._busy.session() as session:
            taken = await self._take(session, worker_session, (), want, lanes=lanes)
            if not taken.claimed and not await self.worker_sessions.may_claim(session, worker_id, worker_session):
                self.wait_registry.wake_next(worker_session.wait_group, lanes)
                return None
            return await self._handing.hand_out(
                session, taken.claimed, with_lease_ends=with_lease_ends
            ), taken.may_have_more

    async def _alive(self, worker_ids: Sequence[int]) -> None:
        """Record heartbeats of the workers waiting here, and note which of them drain or are gone."""
        states = await beat_workers(self._engine.database, worker_ids)
        self.worker_sessions.hear(worker_ids, states)
        self.wait_registry.end_waits(worker_id for worker_id in worker_ids if states.get(worker_id) != "active")
