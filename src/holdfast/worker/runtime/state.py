"""The state of one worker, and the only code that changes it.

The worker, its exchange loop and its heartbeat thread share one `WorkerState` and call its methods. Only the event
loop's thread changes it; the heartbeat thread reads copies, and schedules its changes on the event loop.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from holdfast.authoring.action import Action
from holdfast.core.tasks.outcome import STOPPED, Completed, Lost, Outcome, Released
from holdfast.engine.failure_log import FailureLog
from holdfast.engine.leases import Claimed, Refusal, Report, Settled, report_of
from holdfast.engine.lifecycle.tasks.heartbeat import Beat
from holdfast.execution.attempt_pool import AttemptPool
from holdfast.execution.dataset_writer import Datasets
from holdfast.execution.notes import Notes
from holdfast.execution.runner import CANCELED, FENCED, INTERRUPTED, Isolator, Runner
from holdfast.execution.running_attempt import FOREVER, AttemptPlan, PolicyOverrides, RunningAttempt, kill_at
from holdfast.worker.runtime.dataset_commits import DatasetCommits
from holdfast.worker.runtime.work_signal import WorkSignal
from holdfast.worker.transport.contract import SignOnResult, Transport

log = logging.getLogger("holdfast.worker")

BATCH_MAX = 2_000
BATCH_SHARED_MIN = 100
"""Minimum number of reports per exchange where several exchanges share them."""
BATCH_FOLLOWERS_MAX = 2_000
REFUSALS_KEPT = 100


class ProcessControl(Protocol):
    """What a worker may do to its own process. A worker in a process that serves other purposes too has none."""

    def publish_kill_at(self, worker_id: int, kill_at: float) -> None:
        """Publish when this process must be dead, for the component that kills it then. Called from any thread."""
        ...

    def exit(self) -> None:
        """End the process now. Called from any thread."""
        ...


def share_of(slots: int, concurrent_exchanges: int) -> int:
    """Return how many tasks one exchange may claim.

    The concurrent exchanges share the slots evenly, but no exchange gets a share too small to be worth a round trip.
    """
    return max(-(-slots // concurrent_exchanges), min(-(-slots // 2), BATCH_SHARED_MIN))


class WorkerState:
    """The registration of one worker, its attempts, its unsettled reports, and whether it drains or stops."""

    def __init__(
        self,
        transport: Transport,
        actions: Mapping[str, Action[..., Any]],
        *,
        slots: int,
        isolator: Isolator | None = None,
        datasets: Datasets | None = None,
        overrides: PolicyOverrides | None = None,
        process: ProcessControl | None = None,
    ) -> None:
        self.transport = transport
        self.actions = actions
        self.settings = transport.settings.worker
        self.slots = slots
        self.share = share_of(slots, transport.concurrent_exchanges)
        self.process = process
        self.signal = WorkSignal(transport.concurrent_exchanges)
        self.notes = Notes()

        self.worker_id = 0
        self.peers, self.rank = 1, 0
        """How many workers of the same kind are present, and how many of them registered before this one."""

        self.is_draining = False
        self.is_drained = False
        """Whether the worker ended because it was asked to drain and had nothing left to run or report."""
        self.is_stopping = False
        self.finish_by = FOREVER
        """When attempts that still run are interrupted."""

        self.running: dict[int, RunningAttempt] = {}
        self.reports: list[Report] = []
        """Reports of ended attempts that no exchange is sending now."""
        self._batches_in_exchanges: list[list[Report]] = []
        self.commits = DatasetCommits(self)
        self._abandoned: deque[tuple[int, Any]] = deque(maxlen=2 * slots)
        """(task, token) of fenced attempts that ended; the reaper decides about them."""
        self._slots_requested = 0
        """Slots for which exchanges under way try to claim tasks."""

        self.started_count = 0
        self.accepted_count = 0
        self.refusals: deque[Refusal] = deque(maxlen=REFUSALS_KEPT)
        """The newest reports that were refused."""

        self._overrides = overrides
        self._plans: dict[tuple[int, int], AttemptPlan] = {}
        self._failure_log = FailureLog()
        self._batch_max = BATCH_MAX if transport.concurrent_exchanges == 1 else max(self.share, BATCH_SHARED_MIN)
        self._publishing = threading.Lock()
        self._runner = Runner(
            threads=ThreadPoolExecutor(slots, "holdfast-action"),
            isolator=isolator,
            output_bytes_max=transport.settings.limits.output_bytes_max,
            cancel_grace_seconds=self.settings.cancel_grace_seconds,
            effect_store=transport.effect_store,
            notes=self.notes,
            datasets=transport.declared_datasets(datasets or {}),
        )
        self._pool = AttemptPool(self._runner.start, self._attempt_ended)

    # Registration, drain and stop.

    def register(self, result: SignOnResult) -> None:
        # The engine decides lease and heartbeat times: a server may use others than this worker's settings.
        self.settings = replace(
            self.settings, lease_seconds=result.lease_seconds, heartbeat_seconds=result.heartbeat_seconds
        )
        self.worker_id = result.worker_id
        self.publish_kill_at()

    def stop(self, within_seconds: float | None = None) -> None:
        """Claim no more tasks. Attempts may finish within the shutdown time, or within `within_seconds`."""
        self.is_stopping = True
        seconds = self.settings.shutdown_seconds if within_seconds is None else within_seconds
        self.finish_by = min(self.finish_by, time.monotonic() + seconds)
        self.signal.wake()

    def end_drain(self) -> None:
        """Stop, because the worker was asked to drain and nothing is left."""
        self.is_drained = self.is_stopping = True
        self.signal.wake()

    def apply_heartbeat(self, beat: Beat, renewing: Mapping[int, RunningAttempt]) -> None:
        """Apply the response to a heartbeat that renewed these attempts; a later attempt of a task may run by now."""
        for task_ids, reason in ((beat.lost, FENCED), (beat.canceled, CANCELED)):
            self.interrupt(
                (renewing[task_id] for task_id in task_ids if self.running.get(task_id) is renewing[task_id]), reason
            )
        # Draining is permanent: it is not undone by a later response.
        self.is_draining = self.is_draining or beat.worker_state != "active"
        self.peers, self.rank = max(1, beat.peers), beat.rank
        self.signal.has_notes_due = bool(self.notes)
        if beat.worker_state is None and not self.is_stopping:
            log.error("this worker is no longer registered; leaving")
            self.stop()
        self.signal.wake()

    # Attempts.

    async def start(self, claimed: Sequence[Claimed], sent_at: float) -> None:
        """Register the tasks of a claim sent at `sent_at`, and start to run them."""
        if not claimed:
            return
        is_first = not self.running
        # If a fenced attempt of the same task still runs here (in a thread that cannot be stopped), skip the new lease
        # and let it expire.
        new: Sequence[Claimed] = claimed
        if not is_first or self.commits:
            present = self.running.keys() | self.commits.task_ids
            new = [task for task in claimed if task.task_id not in present]
        plans = await self._plans_for(new)
        lease_seconds = self.settings.lease_seconds
        attempts = [RunningAttempt(task, plans[task.lane_id, task.policy_id], lease_seconds, sent_at) for task in new]
        if not attempts:
            return
        self.running.update({attempt.claimed.task_id: attempt for attempt in attempts})
        self.started_count += len(attempts)
        if is_first and self.process is not None:
            # All leases of one claim expire together, so the first one's deadline is enough; computing a thousand would
            # delay the start.
            with self._publishing:
                self.process.publish_kill_at(self.worker_id, attempts[0].kill_at)
        # Publish first, then read the clock: a process that freezes in between is killed, or finds here that it is too
        # late.
        if self.is_stopping or time.monotonic() >= attempts[0].fence_at:
            self.interrupt(attempts, INTERRUPTED)
        self._pool.start(attempts)

    async def _plans_for(self, claimed: Sequence[Claimed]) -> dict[tuple[int, int], AttemptPlan]:
        """Return how to run the claimed tasks: one cached plan per lane and policy."""
        pairs = {(task.lane_id, task.policy_id) for task in claimed}
        if missing := [pair for pair in pairs if pair not in self._plans]:
            names = self.transport.names
            await names.learn({lane_id for lane_id, _ in missing}, {policy_id for _, policy_id in missing})
            for lane_id, policy_id in missing:
                lane, policy = names.lane(lane_id), names.policy(policy_id)
                if self._overrides is not None:
                    policy = self._overrides.applied(policy)
                self._plans[lane_id, policy_id] = AttemptPlan(self.actions[lane.action], lane, policy)
        return self._plans

    def _attempt_ended(self, attempt: RunningAttempt, outcome: Outcome) -> None:
        """Queue the report of one attempt, and log a failure."""
        self.running.pop(attempt.claimed.task_id, None)
        if attempt.stop_reason == INTERRUPTED and isinstance(outcome, Lost):
            # The attempt's process ended because this worker stops. That is a release, not a loss.
            outcome = Released(reason=STOPPED)
        if attempt.stop_reason == FENCED:
            # A fenced attempt has no right to report; the reaper decides its outcome.
            self._abandoned.append((attempt.claimed.task_id, attempt.claimed.lease_token))
            self.publish_kill_at()
        elif type(outcome) is Completed and outcome.commits:
            self.commits.start(self._report(attempt, outcome))
        else:
            self.reports.append(report := self._report(attempt, outcome))
            if type(outcome) is not Completed:
                policy = attempt.plan.policy if self.transport.has_full_policies else None
                self._failure_log.tell(attempt.plan.lane.action, report, policy)
        self.signal.wake()

    def _report(self, attempt: RunningAttempt, outcome: Outcome) -> Report:
        report = report_of(attempt.claimed, outcome, leased_at=attempt.renewed_at)
        if self._overrides is None:
            return report
        opens_letter = self._overrides.opens_dead_letters
        return msgspec.structs.replace(report, policy=attempt.plan.policy, opens_letter=opens_letter)

    def interrupt(self, attempts: Iterable[RunningAttempt], reason: str) -> None:
        """Stop attempts and record the reason. The first reason is kept."""
        for attempt in list(attempts):
            if attempt.stop_reason is None:
                attempt.stop_reason = reason
                if attempt.stop is not None:
                    attempt.stop.set()
                if attempt.task is not None:
                    attempt.task.cancel()

    def publish_kill_at(self) -> None:
        """Publish when this process must be dead. The lock keeps an older value from overwriting a newer one."""
        if self.process is not None:
            with self._publishing:
                self.process.publish_kill_at(self.worker_id, kill_at(self.running.copy().values()))

    async def close(self) -> None:
        await self.commits.close()
        self.publish_kill_at()
        await self._runner.close()

    # Slots.

    @property
    def slots_taken(self) -> int:
        return len(self.running) + len(self.commits)

    def claimable_slots(self) -> int:
        """Return how many tasks the next exchange may claim."""
        if self.is_draining or self.is_stopping:
            return 0
        return max(0, min(self.share, self.slots - self.slots_taken - self._slots_requested))

    @contextmanager
    def requesting(self, slots: int) -> Iterator[None]:
        """Count the slots as taken while an exchange tries to claim tasks for them."""
        self._slots_requested += slots
        try:
            yield
        finally:
            self._slots_requested -= slots

    # Reports.

    @property
    def is_empty(self) -> bool:
        """Whether nothing runs and nothing is left to report."""
        return not (self.slots_taken or self.reports or self._batches_in_exchanges)

    @contextmanager
    def sending(self) -> Iterator[list[Report]]:
        """Yield the next batch of reports, marked as being sent while the block runs. If it fails, requeue them."""
        batch = self.reports[: self._batch_size()]
        # A report is always in at least one of the two lists, because the heartbeat thread may read them at any moment.
        # A report that is sent twice is settled once.
        self._batches_in_exchanges.append(batch)
        del self.reports[: len(batch)]
        try:
            yield batch
        except BaseException:
            self.reports[:0] = batch
            raise
        finally:
            self._batches_in_exchanges.remove(batch)

    def _batch_size(self) -> int:
        """Return how many reports one transaction should carry, at least one.

        The batch is limited by the size of the outputs and by the number of nodes it releases (a few thousand), because
        other workers see these nodes only after the transaction commits.
        """
        bytes_left, followers_left = self.transport.batch_bytes_max, BATCH_FOLLOWERS_MAX
        for count, report in enumerate(self.reports[: self._batch_max]):
            followers_left -= report.followers
            if followers_left < 0:
                return max(1, count)
            if type(report.outcome) is Completed:
                bytes_left -= len(report.outcome.output)
                if bytes_left < 0:
                    return max(1, count)
        return self._batch_max

    def record_settled(self, settled: Settled) -> None:
        """Count the accepted reports, and log the refused ones."""
        for refusal in settled.refused:
            log.warning("report refused: task %s attempt %s: %s", refusal.task_id, refusal.attempt, refusal.winner)
            self.refusals.append(refusal)
        self.accepted_count += settled.accepted

    def unsettled_reports(self) -> list[Report]:
        """Return reports not known to be settled, whether sent or not."""
        return [*(report for batch in self._batches_in_exchanges.copy() for report in batch), *self.reports]

    def unsettled_and_committing(self) -> list[Report]:
        """Return unsettled reports and those being committed to datasets; the heartbeat renews their leases."""
        return [*self.commits.reports(), *self.unsettled_reports()]

    def known_leases(self) -> list[tuple[int, Any]]:
        """Return (task, token) of leases that this worker must not take over again: running, unsettled or abandoned."""
        running = [(attempt.claimed.task_id, attempt.claimed.lease_token) for attempt in self.running.values()]
        ended = [(report.task_id, report.lease_token) for report in self.unsettled_and_committing()]
        return [*running, *ended, *self._abandoned]

    # Called from the heartbeat thread.

    def running_snapshot(self) -> list[RunningAttempt]:
        return list(self.running.copy().values())

    def interrupt_and_hand_back(self) -> list[Report]:
        """Return what can be reported before the process ends: ended attempts, and attempts that never started.

        An attempt sets `is_started` and then reads its stop reason; this method sets the stop reason and then reads
        `is_started`. So at least one of the two sees the other.
        """
        attempts = self.running_snapshot()
        for attempt in attempts:
            attempt.stop_reason = attempt.stop_reason or INTERRUPTED
        unstarted = [report_of(attempt.claimed, Released()) for attempt in attempts if not attempt.is_started]
        return [*self.unsettled_reports(), *unstarted]

    def health(self) -> str:
        return json.dumps({"running": len(self.running), "slots": self.slots, "pid": os.getpid()})
