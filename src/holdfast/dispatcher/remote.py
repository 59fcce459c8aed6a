"""Workers that are elsewhere: the worker contract for those that keep nothing but their leases.

A worker in this process carries what a claim gave it until it reports; one behind HTTP names task, attempt and token
only, so the rest is read again here. The verbs beneath are the same, and so is the fence.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from holdfast.core import limits
from holdfast.core.access import require_queues
from holdfast.core.outcome import Failed, Outcome
from holdfast.dispatcher.attach import attach
from holdfast.dispatcher.claim import HELD_MAX, Claimer, WorkerIdentity, claim_task
from holdfast.dispatcher.engine import Engine
from holdfast.dispatcher.exchange import exchange
from holdfast.dispatcher.follow import follow_up
from holdfast.dispatcher.inputs import with_inputs
from holdfast.dispatcher.leases import Claimed, Refusal, Report, report_of
from holdfast.dispatcher.settle import settle
from holdfast.errors import Conflict, LeaseLost
from holdfast.store.database import Session
from holdfast.store.statements import sql

_REGISTER = sql("register_worker")
_READ_WORKER = sql("read_worker")
_BEAT_WORKER = sql("beat_worker")
_HEARTBEAT_TASK = sql("heartbeat_task")
_RENEW_HELD = sql("renew_held")
_HELD_UNNAMED = sql("held_unnamed")
_OPEN_ATTEMPTS = sql("open_attempts")
_LEASE_ENDS = sql("lease_ends")
_ADD_NOTES = sql("add_notes")

CLAIMERS_MAX = 10_000
CLAIM_MAX = 1_000


class Handed(msgspec.Struct, frozen=True, kw_only=True):
    """A claimed task as a worker elsewhere gets it."""

    task_id: str
    attempt: int
    lease_token: str
    lease_expires_at: datetime
    action: str
    queue: str
    input: msgspec.Raw
    tags: list[str]
    run_id: str | None
    timeout_seconds: float | None
    capability_token: str | None = None
    """The right to beat for and to settle this attempt, for whoever runs it and is no worker. The server adds it."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ended, as its worker reports it, with what it said on the way as (kind, JSON)."""

    task_id: int
    attempt: int
    lease_token: UUID
    outcome: Outcome
    notes: Sequence[tuple[str, str]] = ()


class Renewed(msgspec.Struct, frozen=True, kw_only=True):
    lease_expires_at: datetime
    cancel_requested: bool


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a whole batch. `lost` and `canceled` are of what the worker said it holds."""

    tasks: list[Handed]
    accepted: int
    refused: list[Refusal]
    lost: list[int]
    canceled: list[int]
    is_draining: bool


class RemoteWorkers:
    """The contract on one engine. Any number of servers may offer it; nothing here is needed but for speed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lease_seconds = engine.settings.worker.lease_seconds
        self._claimers: OrderedDict[tuple[int, tuple[str, ...] | None], Claimer] = OrderedDict()
        self._any_policy_id = 0

    async def register(
        self,
        *,
        name: str,
        actions: Sequence[str],
        queues: Sequence[str] | None,
        slots: int,
        version: str,
        labels: str,
    ) -> int:
        """A new incarnation; its id is the one to use from now on."""
        named = [limits.valid_action(action) for action in actions]
        served = None if queues is None else [limits.valid_queue(queue) for queue in queues]
        row = await self._engine.database.fetchrow(
            _REGISTER, name, version, served, named, slots, labels, self._engine.tenant_id
        )
        return int(row["worker_id"])

    async def claim(
        self, worker_id: int, *, queues: Sequence[str] | None, limit: int, allowed: Collection[str] | None = None
    ) -> list[Handed]:
        """Take at most `limit` tasks of the worker's actions; one that drains gets none.

        `allowed` are the only queues its caller may serve; `Forbidden` for others.
        """
        async with self._engine.database.session() as session:
            claimer, slots, is_draining = await self._worker(session, worker_id, queues, allowed)
            if is_draining:
                return []
            done = await exchange(
                session, self._engine.catalog, claimer, (), min(limit, slots, CLAIM_MAX), now=time.monotonic()
            )
            return await self._hand_out(session, done.claimed)

    async def claim_named(
        self, worker_id: int, task_id: int, *, allowed: Collection[str] | None = None
    ) -> list[Handed]:
        """Take one named task, or say why not (`Conflict` with `reason`, `NotFound`, `Forbidden`)."""
        async with self._engine.database.session() as session:
            claimer, _, _ = await self._worker(session, worker_id, None, allowed)
            async with session.transaction():
                claimed = await claim_task(session, claimer.identity, task_id)
                if allowed is not None:
                    # Refused after the claim, which is undone: only its row says for sure which queue it is of.
                    await self._engine.catalog.learn([claimed.lane_id], (), session=session)
                    require_queues(allowed, [self._engine.catalog.lane(claimed.lane_id).queue])
            return await self._hand_out(session, await with_inputs(session, self._engine.catalog, [claimed]))

    async def attach(
        self, worker_id: int, task_id: int, attempt: int, token: str, *, allowed: Collection[str] | None = None
    ) -> list[Handed]:
        """Swap the one-shot token of a launch for its lease; `LeaseLost` if it is not good (any more)."""
        async with self._engine.database.session() as session:
            claimer, _, _ = await self._worker(session, worker_id, None, allowed)
            async with session.transaction():
                claimed = await attach(session, claimer.identity, task_id, attempt, token)
                if allowed is not None:
                    # Undone with the attach, as for a task claimed by name.
                    await self._engine.catalog.learn([claimed.lane_id], (), session=session)
                    require_queues(allowed, [self._engine.catalog.lane(claimed.lane_id).queue])
            return await self._hand_out(session, await with_inputs(session, self._engine.catalog, [claimed]))

    async def heartbeat(self, task_id: int, attempt: int, lease_token: UUID) -> Renewed:
        """Extend one lease; `LeaseLost` if it expired or was never this attempt's."""
        async with self._engine.database.transaction() as session:
            row = await session.fetchrow(_HEARTBEAT_TASK, task_id, attempt, lease_token, self._lease_seconds)
            if row is None:
                raise LeaseLost(
                    f"Attempt {attempt} of task {task_id} does not hold the lease any more.",
                    advice="Stop the work; its result would be refused.",
                    task_id=str(task_id),
                )
            await session.fetchrow(_BEAT_WORKER, row["worker_id"], "{}")
        return Renewed(lease_expires_at=row["lease_expires_at"], cancel_requested=row["cancel_requested"])

    async def complete(self, done: Done) -> None:
        """Settle one attempt; `LeaseLost` naming the winner if the fence refused it."""
        await self._prepare()
        async with self._engine.database.transaction() as session:
            settled = await settle(session, self._engine.catalog, await self._reports(session, [done]))
        await follow_up(self._engine, settled.news)
        if settled.refused:
            [refusal] = settled.refused
            raise LeaseLost(
                f"Attempt {done.attempt} of task {done.task_id} was not accepted: {refusal.winner}.",
                advice="Another attempt decides; drop this result.",
                task_id=str(done.task_id),
                winner=refusal.winner,
            )

    async def exchange(
        self,
        worker_id: int,
        *,
        held: Sequence[int],
        dones: Sequence[Done],
        queues: Sequence[str] | None,
        limit: int,
        allowed: Collection[str] | None = None,
    ) -> Exchange:
        """Settle, renew and claim in one call. A worker has one such call under way at a time.

        What it holds and did not name is handed out again: the answer that gave it got lost.
        """
        await self._prepare()
        named = [*held, *(done.task_id for done in dones)]
        async with self._engine.database.session() as session:
            claimer, slots, is_draining = await self._worker(session, worker_id, queues, allowed)
            async with session.transaction():
                rows = await session.fetch(_RENEW_HELD, worker_id, list(held), self._lease_seconds)
                found = await session.fetch(_HELD_UNNAMED, worker_id, named, self._lease_seconds, HELD_MAX)
                reports = await self._reports(session, dones)
            unheard = await with_inputs(session, self._engine.catalog, [Claimed(*row) for row in found])
            want = 0 if is_draining else max(0, min(limit, slots, CLAIM_MAX) - len(unheard))
            done = await exchange(session, self._engine.catalog, claimer, reports, want, now=time.monotonic())
            tasks = await self._hand_out(session, [*unheard, *done.claimed])
        await follow_up(self._engine, done.settled.news)
        renewed = {row["task_id"]: row["cancel_requested"] for row in rows}
        return Exchange(
            tasks=tasks,
            accepted=done.settled.accepted,
            refused=done.settled.refused,
            lost=[task_id for task_id in held if task_id not in renewed],
            canceled=[task_id for task_id, is_canceled in renewed.items() if is_canceled],
            is_draining=is_draining,
        )

    async def _worker(
        self, session: Session, worker_id: int, queues: Sequence[str] | None, allowed: Collection[str] | None
    ) -> tuple[Claimer, int, bool]:
        """The worker's claimer, its slots and whether it drains; asking counts as a beat."""
        row = await session.fetchrow(_READ_WORKER, worker_id)
        if row is not None:
            # A worker of other queues is somebody else's, and what it holds is handed out under its id.
            require_queues(allowed, row["queues"])
            require_queues(allowed, queues or ())
        beat = None if row is None else await session.fetchrow(_BEAT_WORKER, worker_id, "{}")
        if row is None or beat is None:
            raise Conflict(
                f"Worker {worker_id} is not registered, or has left.",
                code="worker_not_registered",
                advice="Register again (POST /internal/workers) and use the id it answers.",
                reason="unknown_worker",
            )
        served = row["queues"] if queues is None else [limits.valid_queue(queue) for queue in queues]
        key = (worker_id, None if served is None else tuple(served))
        if (claimer := self._claimers.pop(key, None)) is None:
            identity = WorkerIdentity(
                worker_id=worker_id, actions=row["actions"], queues=served, lease_seconds=self._lease_seconds
            )
            claimer = Claimer(identity)
        self._claimers[key] = claimer
        while len(self._claimers) > CLAIMERS_MAX:
            self._claimers.popitem(last=False)
        return claimer, row["slots"], beat["state"] == "draining"

    async def _hand_out(self, session: Session, claimed: Sequence[Claimed]) -> list[Handed]:
        """Give claimed tasks to a worker; a node that cannot have its input fails here instead."""
        faulty = [one for one in claimed if one.fault is not None]
        if faulty:
            await self._fail(session, faulty)
        sound = [one for one in claimed if one.fault is None]
        if not sound:
            return []
        catalog = self._engine.catalog
        await catalog.learn({one.lane_id for one in sound}, {one.policy_id for one in sound}, session=session)
        ends = {row[0]: row[1] for row in await session.fetch(_LEASE_ENDS, [one.task_id for one in sound])}
        return [self._handed(one, ends[one.task_id]) for one in sound if one.task_id in ends]

    async def _fail(self, session: Session, faulty: Sequence[Claimed]) -> None:
        await self._engine.catalog.learn((), {one.policy_id for one in faulty}, session=session)
        reports = [report_of(one, Failed(one.fault)) for one in faulty if one.fault is not None]
        async with session.transaction():
            settled = await settle(session, self._engine.catalog, reports)
        self._engine.bell.ring(lanes=settled.news.lanes, done=settled.news.awaited)

    def _handed(self, claimed: Claimed, lease_expires_at: datetime) -> Handed:
        lane = self._engine.catalog.lane(claimed.lane_id)
        return Handed(
            task_id=str(claimed.task_id),
            attempt=claimed.attempt,
            lease_token=str(claimed.lease_token),
            lease_expires_at=lease_expires_at,
            action=lane.action,
            queue=lane.queue,
            input=msgspec.Raw(claimed.input),
            tags=list(claimed.tags or ()),
            run_id=None if claimed.run_id is None else str(claimed.run_id),
            timeout_seconds=self._engine.catalog.policy(claimed.policy_id).timeout_seconds,
        )

    async def _reports(self, session: Session, dones: Sequence[Done]) -> list[Report]:
        """Reports as `settle` judges them. One whose attempt is not open any more is refused there by its token."""
        if not dones:
            return []
        known = {
            (row["task_id"], row["attempt"]): row
            for row in await session.fetch(_OPEN_ATTEMPTS, [done.task_id for done in dones])
        }
        catalog = self._engine.catalog
        await catalog.learn((), {row["policy_id"] for row in known.values()}, session=session)
        # Another server may have handed the task out, so what its claims learned of breakers is not known here.
        catalog.guarded |= {row["lane_id"] for row in known.values() if row["is_guarded"]}
        await self._say(session, dones)
        return [self._report(done, known.get((done.task_id, done.attempt))) for done in dones]

    def _report(self, done: Done, row: Any) -> Report:
        return Report(
            done.task_id,
            done.attempt,
            done.lease_token,
            self._any_policy_id if row is None else row["policy_id"],
            0 if row is None else row["retries"],
            0 if row is None else row["losses"],
            done.outcome,
            lane_id=0 if row is None else row["lane_id"],
        )

    async def _prepare(self) -> None:
        """A late report needs some policy to be decided by before the fence refuses it. Before any session is held."""
        if self._any_policy_id == 0:
            catalog = self._engine.catalog
            policy_id = await catalog.policy_id(self._engine.tenant_id, self._engine.default_policy)
            await catalog.learn((), [policy_id])
            self._any_policy_id = policy_id

    async def _say(self, session: Session, dones: Sequence[Done]) -> None:
        """Keep what attempts said, while their lease is still theirs."""
        said = [(done, kind, detail) for done in dones for kind, detail in done.notes]
        if said:
            await session.fetch(
                _ADD_NOTES,
                [done.task_id for done, _, _ in said],
                [done.attempt for done, _, _ in said],
                [done.lease_token for done, _, _ in said],
                [kind for _, kind, _ in said],
                [detail for _, _, detail in said],
            )
