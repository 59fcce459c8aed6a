"""The functions of the engine for tests: enqueue, claim, heartbeat, settle and repair, one step at a time.

There is no logic here: each method calls the engine function that workers and servers call, in its own transaction. A
worker is a name; its first use registers it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.codec import json_codec
from holdfast.core.dead_letters.dead_letter import DISPATCHES_MAX
from holdfast.core.limits.breaker import Breaker, CircuitState
from holdfast.core.limits.quota import Quota
from holdfast.core.tasks.outcome import Outcome
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.campaigns.advance import campaigns_once
from holdfast.engine.engine import Engine
from holdfast.engine.launching.attach import Reservation, attach, reserve
from holdfast.engine.leases import Claimed, report_of
from holdfast.engine.lifecycle.dead_letters import commands as dead_letter_commands
from holdfast.engine.lifecycle.dead_letters.sweep import sweep_once
from holdfast.engine.lifecycle.runs.inputs import with_inputs
from holdfast.engine.lifecycle.tasks import cancel as cancel_verb
from holdfast.engine.lifecycle.tasks.claim import Claimer, WorkerIdentity
from holdfast.engine.lifecycle.tasks.claim_named import claim_task
from holdfast.engine.lifecycle.tasks.enqueue import EnqueueOrder, enqueue, enqueue_in, intern
from holdfast.engine.lifecycle.tasks.heartbeat import Beat, heartbeat
from holdfast.engine.lifecycle.tasks.reap import OVERDUE_SECONDS, reap_once
from holdfast.engine.lifecycle.tasks.reconcile import reconcile_once
from holdfast.engine.lifecycle.tasks.retry import retry
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.engine.limits import queues
from holdfast.engine.limits.breakers import BreakerView, show_breaker, steer
from holdfast.engine.limits.declare import Guards, declare_guards
from holdfast.engine.limits.quotas import set_quota
from holdfast.engine.publish import publish_and_propagate
from holdfast.engine.queries.dead_letters import DeadLetterView, list_letters
from holdfast.engine.schedules.fire import schedule_once
from holdfast.errors import LeaseLost, NotFound
from holdfast.store.database import Session
from holdfast.store.sql.workers import workers as workers_sql
from holdfast.testing.rows import AttemptRow, StoredTask
from holdfast.testing.runs import Runs
from holdfast.testing.schedules import Schedules


class Orderable(Protocol):
    """What `enqueue` needs to know about a task; `a_task()` creates one."""

    @property
    def action(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def input(self) -> Mapping[str, Any]: ...
    @property
    def priority(self) -> int: ...
    @property
    def delay_seconds(self) -> float: ...
    @property
    def key(self) -> str | None: ...
    @property
    def tags(self) -> tuple[str, ...]: ...
    @property
    def policy(self) -> RetryPolicy: ...


class Enqueued(msgspec.Struct, frozen=True):
    """A task that was accepted now, or before under the same key."""

    task_id: str
    is_new: bool


class HeldLease(msgspec.Struct, frozen=True):
    """The lease of a worker after a claim."""

    claimed: Claimed
    worker: str
    worker_id: int
    seconds: float

    @property
    def task_id(self) -> str:
        return str(self.claimed.task_id)

    @property
    def attempt(self) -> int:
        return self.claimed.attempt

    @property
    def token(self) -> Any:
        return self.claimed.lease_token


class EngineHarness:
    """Calls one engine's functions step by step."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._actions: list[str] = []
        self._claimers: dict[str, Claimer] = {}
        self.runs = Runs(self)
        self.schedules = Schedules(self)

    async def enqueue(self, task: Orderable, *, session: Session | None = None) -> Enqueued:
        """Enqueue one task; with `session`, inside the transaction open on it."""
        return (await self.enqueue_many(task, [task.input], session=session))[0]

    async def enqueue_many(
        self, task: Orderable, inputs: Sequence[Mapping[str, Any]], *, session: Session | None = None
    ) -> list[Enqueued]:
        """Enqueue one task for each input, otherwise like `task`."""
        self.know(task.action)
        order = EnqueueOrder(
            tenant_id=self.engine.tenant_id,
            queue=task.queue,
            action=task.action,
            policy=task.policy,
            priority=task.priority,
            delay_seconds=task.delay_seconds,
            tags=task.tags,
        )
        bytes_max = self.engine.settings.limits.input_bytes_max
        encoded = [json_codec.encode(dict(task_input), bytes_max=bytes_max, what="input") for task_input in inputs]
        keys = None if task.key is None else [task.key]
        interned = await intern(self.engine.catalog, order)
        if session is None:
            accepted = await enqueue(self.engine, interned, encoded, keys=keys)
        else:
            accepted = await enqueue_in(session, self.engine.catalog, interned, encoded, keys=keys)
        return [Enqueued(str(task_id), accepted.is_new) for task_id in accepted.task_ids]

    async def worker_id(self, worker: str = "first") -> int:
        """Return the worker id behind a worker's name, registered on first use."""
        return (await self._claimer(worker)).identity.worker_id

    async def claim(self, want: int, *, worker: str = "first") -> list[HeldLease]:
        """Claim at most `want` tasks as the worker's loop would."""
        claimer = await self._claimer(worker)
        claimer.forget()
        async with self.engine.database.transaction() as session:
            claimed = await claimer.claim(session, want, now=time.monotonic())
            claimed = await with_inputs(session, self.engine.catalog, claimed)
        self.engine.catalog.guarded |= claimer.guarded
        return [await self._lease(task, worker) for task in claimed]

    async def claim_one(self, *, worker: str = "first") -> HeldLease:
        """Claim the next task; raise `NotFound` if there is none to claim."""
        leases = await self.claim(1, worker=worker)
        if not leases:
            raise NotFound("There is nothing to claim.", code="nothing_to_claim")
        return leases[0]

    async def claim_task(self, task_id: str, *, worker: str = "first") -> HeldLease:
        """Claim one named task, or raise the reason why not."""
        identity = (await self._claimer(worker)).identity
        async with self.engine.database.transaction() as session:
            claimed = await claim_task(session, identity, int(task_id))
        return await self._lease(claimed, worker)

    async def reserve(self, task_id: str, *, launch_seconds: float = 120.0) -> Reservation | None:
        """Reserve a task for a worker that is being launched."""
        async with self.engine.database.session() as session:
            return await reserve(session, int(task_id), launch_seconds=launch_seconds)

    async def attach(self, reservation: Reservation, *, worker: str = "first") -> HeldLease:
        """Exchange a reservation for the worker's lease."""
        identity = (await self._claimer(worker)).identity
        async with self.engine.database.session() as session:
            claimed = await attach(session, identity, reservation.task_id, reservation.attempt, reservation.token)
        return await self._lease(claimed, worker)

    async def heartbeat(self, *leases: HeldLease) -> Beat:
        """Send a heartbeat for leases of one worker."""
        tokens = {lease.claimed.task_id: lease.token for lease in leases}
        async with self.engine.database.session() as session:
            return await heartbeat(session, leases[0].worker_id, tokens, lease_seconds=leases[0].seconds)

    async def settle(self, lease: HeldLease, outcome: Outcome) -> None:
        """Report how an attempt ended; raise `LeaseLost` if the fence refused it."""
        report = report_of(lease.claimed, outcome)
        async with self.engine.database.transaction() as session:
            settled = await settle(session, self.engine.catalog, [report])
        await publish_and_propagate(self.engine, settled.notifications)
        if settled.refused:
            raise LeaseLost(
                f"Attempt {lease.attempt} of task {lease.task_id} was not accepted: {settled.refused[0].winner}.",
                winner=settled.refused[0].winner,
            )

    async def reap_once(self, *, overdue_seconds: float = OVERDUE_SECONDS) -> int:
        """Run one pass of the reaper; return how many attempts it ended."""
        reaped = await reap_once(self.engine.database, self.engine.catalog, overdue_seconds=overdue_seconds)
        return reaped.count

    async def reconcile_once(self) -> int:
        """Run one pass of the reconciler; return how many tasks it promoted."""
        return (await reconcile_once(self.engine.database)).count

    async def schedule_once(self) -> int:
        """Run one pass over schedules; return how many tasks and runs it started."""
        engine = self.engine
        grace = engine.settings.worker.cancel_grace_seconds
        done = await schedule_once(engine.database, engine.catalog, grace_seconds=grace)
        await publish_and_propagate(engine, done.notifications)
        return done.fired

    async def cancel(self, task_id: str, *, grace_seconds: float = 10.0, reason: str = "", actor: str = "test") -> str:
        """Cancel a task; return `canceled`, `canceling`, or `over` if it had ended before."""
        done = await cancel_verb.cancel(
            self.engine.database,
            self.engine.catalog,
            self.engine.tenant_id,
            [int(task_id)],
            grace_seconds=grace_seconds,
            reason=reason,
            actor=actor,
        )
        return done.states.get(int(task_id), "over")

    async def retry(self, task_id: str, *, reason: str = "", actor: str = "test") -> int:
        """Run a failed task again; return the number of the attempt that will run."""
        done = await retry(
            self.engine.database, self.engine.catalog, self.engine.tenant_id, int(task_id), actor=actor, reason=reason
        )
        return done.attempt

    async def redrive(
        self, task_id: str, *, reason: str = "fixed", actor: str = "test", dispatches: int = DISPATCHES_MAX
    ) -> int:
        """Run a task that failed for good again through its dead letter; return the attempt that will run."""
        done = await dead_letter_commands.redrive(
            self.engine, self.engine.tenant_id, int(task_id), actor=actor, reason=reason, dispatches=dispatches
        )
        return done.attempt

    async def request(self, fingerprint: str, *, reason: str = "fixed", actor: str = "test") -> int:
        """Request a retry of a group of dead letters; return how many."""
        requested = await dead_letter_commands.redrive_group(
            self.engine, self.engine.tenant_id, fingerprint, actor=actor, reason=reason
        )
        return requested.letters

    async def sweep_once(self) -> int:
        """Run one pass over dead letters; return how many changed."""
        return (await sweep_once(self.engine.database, self.engine.catalog)).count

    async def campaigns_once(self) -> int:
        """Run one step of every campaign; return how many dead letters were released."""
        engine = self.engine
        moved = await campaigns_once(engine.database, engine.catalog, silent_seconds=engine.silent_seconds)
        await publish_and_propagate(self.engine, moved.notifications)
        return moved.released

    async def letters(self, task_id: str) -> list[DeadLetterView]:
        """Return the dead letters of a task, first to last."""
        found = await list_letters(self.engine.database, self.engine.tenant_id, task_id=int(task_id))
        return found[::-1]

    async def pause(self, queue: str = "default", *, actor: str = "test", reason: str = "") -> bool:
        """Pause a queue; return False if it was paused already."""
        return await queues.pause(self.engine, self.engine.tenant_id, queue, actor=actor, reason=reason)

    async def resume(self, queue: str = "default", *, actor: str = "test", reason: str = "") -> bool:
        """Resume a queue; return False if it was not paused."""
        return await queues.resume(self.engine, self.engine.tenant_id, queue, actor=actor, reason=reason)

    async def limit(
        self, queue: str = "default", *, max_running: int | None = None, starts_per_second: float | None = None
    ) -> None:
        """Limit how many tasks of a queue run at once and start per second."""
        await queues.limit(
            self.engine,
            self.engine.tenant_id,
            queue,
            max_running=max_running,
            starts_per_second=starts_per_second,
            actor="test",
            reason="",
        )

    async def guard(self, action: str, *, breaker: Breaker | None = None, quota: Quota | None = None) -> None:
        """Declare the breaker and quota of an action, as its workers do; an omitted one is removed."""
        await declare_guards(self.engine, self.engine.tenant_id, {action: Guards(breaker=breaker, quota=quota)})

    async def breaker(self, action: str) -> BreakerView:
        """Return the breaker of an action as operators see it."""
        return await show_breaker(self.engine.database, self.engine.tenant_id, action)

    async def steer(self, action: str, to: CircuitState, *, actor: str = "test", reason: str = "") -> BreakerView:
        """Open, close or reset a breaker manually."""
        return await steer(self.engine, self.engine.tenant_id, action, to, actor=actor, reason=reason)

    async def quota(self, quota: Quota | None, *, queue: str | None = None, reason: str = "") -> bool:
        """Set or remove the retry quota of a queue, or of the tenant without `queue`."""
        return await set_quota(self.engine, self.engine.tenant_id, quota, queue=queue, actor="test", reason=reason)

    async def retire(self, worker: str, *, was_asked_to_stop: bool = False) -> None:
        """Record that the worker's process has ended."""
        await workers_sql.retire_worker(self.engine.database, await self.worker_id(worker), was_asked_to_stop)

    async def drain(self, worker: str) -> None:
        """Ask the worker to claim no more tasks."""
        await workers_sql.drain_worker(self.engine.database, await self.worker_id(worker))

    async def task(self, task_id: str) -> StoredTask:
        """Return the task as the view `tasks` shows it."""
        row = await self.engine.database.fetchrow("select * from holdfast.tasks where task_id = $1", task_id)
        if row is None:
            raise NotFound(f"There is no task {task_id}.", code="task_not_found")
        return StoredTask.of(row)

    async def attempts(self, task_id: str) -> list[AttemptRow]:
        """Return the attempts of a task as the view `attempts` shows them, first to last."""
        rows = await self.engine.database.fetch(
            "select * from holdfast.attempts where task_id = $1 order by attempt", task_id
        )
        return [AttemptRow.of(row) for row in rows]

    def know(self, *actions: str) -> None:
        """Let every worker claim tasks of these actions, including workers registered before."""
        self._actions += [action for action in actions if action not in self._actions]

    async def _claimer(self, worker: str) -> Claimer:
        if worker not in self._claimers:
            row = await workers_sql.register_worker(
                self.engine.database, worker, "", None, self._actions, 100, "{}", self.engine.tenant_id, None
            )
            self._claimers[worker] = Claimer(
                WorkerIdentity(
                    worker_id=row.worker_id,
                    actions=self._actions,
                    queues=None,
                    lease_seconds=self.engine.settings.worker.lease_seconds,
                )
            )
        return self._claimers[worker]

    async def _lease(self, claimed: Claimed, worker: str) -> HeldLease:
        await self.engine.catalog.learn([claimed.lane_id], [claimed.policy_id])
        identity = self._claimers[worker].identity
        return HeldLease(claimed, worker, identity.worker_id, identity.lease_seconds)
