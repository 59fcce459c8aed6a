"""One round of a crash test: attempts run one at a time with the engine's functions, and one of them crashes."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.authoring.action import Action, Isolation, in_process
from holdfast.core.effects.effect import EffectState
from holdfast.core.tasks.outcome import Completed, Failed, Outcome
from holdfast.engine.effects.gate import AnswerEffect, GateDecision, OpenEffect, Sender
from holdfast.engine.effects.steps import KeepStep
from holdfast.engine.engine import Engine
from holdfast.engine.leases import Claimed, Report, report_of
from holdfast.engine.lifecycle.tasks.claim import Claimer, WorkerIdentity
from holdfast.engine.lifecycle.tasks.exchange import exchange
from holdfast.engine.lifecycle.tasks.retry import retry
from holdfast.engine.maintenance.loops import Loops
from holdfast.engine.publish import publish_and_propagate
from holdfast.errors import Invalid
from holdfast.execution.dataset_writer import Datasets, DeclaredDatasets
from holdfast.execution.effect_runner import EffectRunner, takes_key
from holdfast.execution.effect_store import Answer, Ask, DatabaseEffectStore, Request
from holdfast.execution.notes import Notes
from holdfast.execution.runner import Runner
from holdfast.execution.running_attempt import AttemptPlan, RunningAttempt
from holdfast.store.sql.workers import workers as workers_sql
from holdfast.testing.crash_report import Traces

_RETRYING = "select task_id from holdfast.live where state = 'w' and is_retrying"
_QUEUED = "select count(*) from holdfast.live where state = 'q'"

ATTEMPTS_MAX = 1_000
LEASE_SECONDS = 3600.0
"""No heartbeats are sent here; the long lease keeps a slow action from losing it."""


class _Unwound(BaseException):
    """Ends a frozen thread when the round is over."""


class Round:
    """Runs queued tasks to their end, and crashes at the `crash_at`-th point; 0 means never."""

    def __init__(
        self,
        engine: Engine,
        actions: Mapping[str, Action[..., Any]],
        datasets: Datasets,
        traces: Traces,
        *,
        crash_at: int,
    ) -> None:
        self.traces = traces
        self._engine = engine
        self._loops = Loops(engine)
        self._actions = {name: in_process(action) for name, action in actions.items()}
        self._datasets = datasets
        self._crash_at = crash_at
        self._passed = 0
        self._crashed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._thawed = threading.Event()
        self._threads = ThreadPoolExecutor(8, "holdfast-crash-test")
        self._frozen: list[asyncio.Task[Outcome]] = []

    async def run(self) -> None:
        """Claim, run and settle until nothing is left that can run."""
        claimer, reports = await self._claimer(), list[Report]()
        for _ in range(ATTEMPTS_MAX):
            claimed = await self._exchange(claimer, reports)
            reports = []
            if claimed is None:
                if not await self._promote():
                    return
                claimer.forget()
                continue
            self.traces.attempts += 1
            outcome = await self._attempt(claimed)
            if outcome is not None:
                reports = [report_of(claimed, outcome)]
            else:
                await self._retire_worker(claimer)
                claimer = await self._claimer()
        raise Invalid(f"It does not end within {ATTEMPTS_MAX} attempts.", code="too_many_attempts")

    async def close(self) -> None:
        """Release the frozen tasks and threads."""
        self._thawed.set()
        for task in self._frozen:
            task.cancel()
        await asyncio.gather(*self._frozen, return_exceptions=True)
        self._threads.shutdown(wait=False)

    def is_struck(self, where: str) -> bool:
        """Count a point; return True if the crash is here."""
        self._passed += 1
        if self._passed != self._crash_at:
            return False
        self.traces.where = where
        return True

    async def freeze(self, *, is_blocking: bool) -> None:
        """Stop the attempt here forever, and signal that it crashed."""
        self._loop.call_soon_threadsafe(self._crashed.set)
        if is_blocking:
            self._thawed.wait()
            raise _Unwound
        await self._loop.create_future()

    async def _attempt(self, claimed: Claimed) -> Outcome | None:
        """Run one attempt to its outcome; return None if it crashed."""
        if claimed.fault is not None:
            return Failed(claimed.fault)
        catalog = self._engine.catalog
        await catalog.learn([claimed.lane_id], [claimed.policy_id])
        lane = catalog.lane(claimed.lane_id)
        plan = AttemptPlan(self._actions[lane.action], lane, catalog.policy(claimed.policy_id))
        executing = RunningAttempt(claimed, plan, LEASE_SECONDS, time.monotonic())
        self._crashed.clear()
        running = asyncio.create_task(_Runner(self, self._engine, self._threads, self._datasets).run(executing))
        crashing = asyncio.create_task(self._crashed.wait())
        await asyncio.wait([running, crashing], return_when=asyncio.FIRST_COMPLETED)
        crashing.cancel()
        if not running.done():
            self._frozen.append(running)
            return None
        outcome = await running
        is_struck = isinstance(outcome, Completed) and self.is_struck(f"before the completion of {lane.action}")
        return None if is_struck else outcome

    async def _exchange(self, claimer: Claimer, reports: list[Report]) -> Claimed | None:
        async with self._engine.database.session() as session:
            done = await exchange(session, self._engine.catalog, claimer, reports, 1, now=time.monotonic())
        assert not done.settled.refused
        await publish_and_propagate(self._engine, done.settled.notifications)
        return done.claimed[0] if done.claimed else None

    async def _promote(self) -> bool:
        """Run the maintenance passes; return whether tasks are queued.

        Waiting retries are made due, because no time passes.
        """
        database = self._engine.database
        for row in await database.fetch(_RETRYING):
            await retry(
                database, self._engine.catalog, self._engine.tenant_id, row["task_id"], actor="crash test", reason=""
            )
        await self._loops.runs()
        return bool(await database.fetchval(_QUEUED))

    async def _claimer(self) -> Claimer:
        actions = sorted(self._actions)
        row = await workers_sql.register_worker(
            self._engine.database, "crash test", "", None, actions, 1, "{}", self._engine.tenant_id, None
        )
        return Claimer(
            WorkerIdentity(worker_id=row.worker_id, actions=actions, queues=None, lease_seconds=LEASE_SECONDS)
        )

    async def _retire_worker(self, claimer: Claimer) -> None:
        """Retire the crashed attempt's worker, so that the attempt is lost."""
        await workers_sql.retire_worker(self._engine.database, claimer.identity.worker_id, False)
        await self._loops.reap()


class _Runner(Runner):
    """Runs attempts whose effects and steps are crash points of a round."""

    def __init__(self, round_: Round, engine: Engine, threads: ThreadPoolExecutor, datasets: Datasets) -> None:
        bytes_max = engine.settings.limits.output_bytes_max
        effect_store = DatabaseEffectStore(engine)
        super().__init__(
            threads=threads,
            isolator=None,
            output_bytes_max=bytes_max,
            effect_store=effect_store,
            cancel_grace_seconds=engine.settings.worker.cancel_grace_seconds,
            notes=Notes(),
            datasets=DeclaredDatasets(engine.database, engine.settings.tenant, datasets),
        )
        self._round = round_
        self._bytes_max = bytes_max

    def effect_runner(self, executing: RunningAttempt) -> EffectRunner:
        assert executing.stop is not None
        sender = Sender(claimed=executing.claimed, tenant=executing.plan.lane.tenant)
        is_blocking = executing.plan.action.isolation is Isolation.THREAD
        effect_store = self._effect_store
        ask = effect_store.request_from_thread(sender) if is_blocking else effect_store.request_on_loop(sender)
        return _Crashable(self._round, ask, is_blocking=is_blocking, stop=executing.stop, bytes_max=self._bytes_max)


class _Crashable(EffectRunner):
    """Counts what is sent and recorded, with a crash point before and after each."""

    def __init__(self, round_: Round, ask: Ask, *, is_blocking: bool, stop: threading.Event, bytes_max: int) -> None:
        super().__init__(self._watched, is_blocking=is_blocking, stop=stop, bytes_max=bytes_max)
        self._round = round_
        self._inner = ask
        self._waits = is_blocking
        self._dead = threading.Event()
        self._labels: dict[str, str] = {}
        self._keyless: set[str] = set()

    def awaited(self, ask: Ask) -> _Crashable:
        """Return the runner for an executor around plain code; one crash ends both."""
        again = copy.copy(self)
        again._inner, again._waits, again._is_blocking = ask, False, False
        again._begun, again.ask = {}, again._watched
        return again

    def effect(self, name: str, function: Any, *rest: Any, **options: Any) -> Any:
        if not takes_key(function):
            self._keyless.add(name)
        return super().effect(name, function, *rest, **options)

    async def _watched(self, request: Request) -> Answer:
        match request:
            case OpenEffect():
                return await self._open(request)
            case AnswerEffect(key=key, state=EffectState.DONE | EffectState.REFUSED as state):
                word = "receipt" if state is EffectState.DONE else "refusal"
                label = self._labels[key]
                await self._point(f"after sending {label}, before its {word} is stored")
                answer = await self._inner(request)
                await self._point(f"after the {word} of {label}")
                return answer
            case KeepStep(step):
                self._round.traces.steps[step.name] += 1
                await self._point(f"after the step {step.name} ran, before it is stored")
                answer = await self._inner(request)
                await self._point(f"after the step {step.name}")
                return answer
            case _:
                await self._if_dead()
                return await self._inner(request)

    async def _open(self, wanted: OpenEffect) -> Answer:
        label = f"{wanted.name} ({wanted.user_key or f'#{wanted.ordinal + 1}'})"
        await self._point(f"before the gate of {label}")
        gate = await self._inner(wanted)
        assert isinstance(gate, GateDecision)
        if gate.is_open:
            self._labels[gate.key] = label
            await self._point(f"after the gate of {label}, before it is sent")
            traces = self._round.traces
            traces.sends[label] += 1
            traces.names[label] = wanted.name
            if wanted.name in self._keyless:
                traces.keyless.add(label)
        return gate

    async def _point(self, where: str) -> None:
        """Count a point, and freeze the attempt if the crash is here or was before."""
        if not self._dead.is_set() and self._round.is_struck(where):
            self._dead.set()
        await self._if_dead()

    async def _if_dead(self) -> None:
        if self._dead.is_set():
            await self._round.freeze(is_blocking=self._waits)
