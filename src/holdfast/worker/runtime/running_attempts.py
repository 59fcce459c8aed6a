"""The attempts that a worker process has claimed and not yet settled, and how they are run and stopped.

An attempt enters with its lease, runs where its action's isolation says, and leaves as a report. The instant at which
this process must be dead is published whenever it may have changed. Only the event loop's thread changes this state;
the heartbeat thread reads copies.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import msgspec

from holdfast.authoring.action import Action, Isolation
from holdfast.core.tasks.outcome import STOPPED, Canceled, Completed, Failed, Lost, Outcome, Released
from holdfast.engine.failure_log import FailureLog
from holdfast.engine.leases import Claimed, Report, Settled, report_of
from holdfast.errors import Invalid
from holdfast.execution.attempt_pool import Attempts
from holdfast.execution.dataset_writer import Datasets
from holdfast.execution.notes import Notes
from holdfast.execution.runner import CANCELED, FENCED, INTERRUPTED, Isolator, Runner
from holdfast.execution.running_attempt import AttemptPlan, PolicyOverrides, RunningAttempt, kill_at
from holdfast.worker.runtime.dataset_commits import DatasetCommits
from holdfast.worker.transport.contract import Transport

BATCH_MAX = 2_000
BATCH_SHARED_MIN = 100
"""Minimum number of reports per exchange where several exchanges share them."""
BATCH_FOLLOWERS_MAX = 2_000


class RunningAttempts:
    """All unsettled attempts of one worker.

    `changed` is called whenever an attempt ends. `share` is how many tasks one exchange may claim.
    """

    def __init__(
        self,
        transport: Transport,
        actions: Mapping[str, Action[..., Any]],
        *,
        slots: int,
        share: int,
        isolator: Isolator | None,
        notes: Notes,
        datasets: Datasets,
        announce: Callable[[Settled], None],
        publish: Callable[[float], None],
        changed: Callable[[], None],
        rules: PolicyOverrides | None = None,
    ) -> None:
        if isolator is None:
            _refuse_isolated(actions)
        self.entries: dict[int, RunningAttempt] = {}
        self.reports: list[Report] = []
        self._under_way: list[list[Report]] = []
        self.committing = DatasetCommits(transport.settle_alone, announce, changed)
        self.declared = transport.declared(datasets)
        self.settings = transport.settings.worker
        self.begun_count = 0
        self._names = transport.names
        self._decides = transport.decides
        self._failures = FailureLog()
        self._batch_bytes_max = transport.batch_bytes_max
        self._batch_max = BATCH_MAX if transport.concurrent_exchanges == 1 else max(share, BATCH_SHARED_MIN)
        self._actions = actions
        self._isolator = isolator
        self._publish = publish
        self._publishing = threading.Lock()
        self._changed = changed
        self._rules = rules
        self._given_up: deque[tuple[int, Any]] = deque(maxlen=2 * slots)
        self._plans: dict[tuple[int, int], AttemptPlan] = {}
        self._threads = ThreadPoolExecutor(slots, "holdfast-action")
        self._attempts = Attempts(self._run, self._ended)
        self._runner = Runner(
            threads=self._threads,
            isolator=isolator,
            output_bytes_max=transport.settings.limits.output_bytes_max,
            effect_store=transport.effect_store,
            note=notes.add,
            declared=self.declared,
        )

    async def start(self, claimed: Sequence[Claimed], sent_at: float, *, is_stopping: bool) -> None:
        """Register the tasks of a claim sent at `sent_at`, and start to run them."""
        if not claimed:
            return
        is_first = not self.entries
        # If a fenced attempt of the same task still runs here (in a thread that cannot be stopped), skip the new lease
        # and let it expire.
        mine: Sequence[Claimed] = claimed
        if not is_first or self.committing:
            ours = self.entries.keys() | self.committing.task_ids
            mine = [one for one in claimed if one.task_id not in ours]
        plans = await self._plans_for(mine)
        lease_seconds = self.settings.lease_seconds
        entries = [RunningAttempt(one, plans[one.lane_id, one.policy_id], lease_seconds, sent_at) for one in mine]
        if not entries:
            return
        self.entries.update({entry.claimed.task_id: entry for entry in entries})
        self.begun_count += len(entries)
        if is_first:
            # All leases of one claim expire together, so the first one's deadline is enough; computing a thousand would
            # delay the start.
            with self._publishing:
                self._publish(entries[0].kill_at)
        # Publish first, then read the clock: a process that freezes in between is killed, or finds here that it is too
        # late.
        if is_stopping or time.monotonic() >= entries[0].fence_at:
            self.interrupt(entries, INTERRUPTED)
        self._attempts.start(entries)

    def show_kill_at(self) -> None:
        """Publish when this process must be dead. The lock keeps an older value from overwriting a newer one."""
        with self._publishing:
            self._publish(kill_at(self.entries.copy().values()))

    async def _plans_for(self, claimed: Sequence[Claimed]) -> dict[tuple[int, int], AttemptPlan]:
        """Return how to run the claimed tasks: one cached plan per lane and policy."""
        pairs = {(one.lane_id, one.policy_id) for one in claimed}
        if fresh := [pair for pair in pairs if pair not in self._plans]:
            names = self._names
            await names.learn({lane_id for lane_id, _ in fresh}, {policy_id for _, policy_id in fresh})
            for lane_id, policy_id in fresh:
                lane, policy = names.lane(lane_id), names.policy(policy_id)
                if self._rules is not None:
                    policy = self._rules.applied(policy)
                self._plans[lane_id, policy_id] = AttemptPlan(self._actions[lane.action], lane, policy)
        return self._plans

    def _run(self, held: RunningAttempt) -> Awaitable[Outcome]:
        """Start one attempt in the event loop, a thread or a process."""
        held.is_started = True
        if held.verdict is not None:
            return _at_once(Canceled() if held.verdict == CANCELED else Released())
        if held.claimed.fault is not None:
            return _at_once(Failed(held.claimed.fault))
        if (timeout := held.plan.policy.timeout_seconds) is not None:
            held.deadline_at = time.monotonic() + timeout + self.settings.cancel_grace_seconds
        if held.plan.action.isolation is Isolation.PROCESS:
            assert self._isolator is not None
            return self._isolator.run(self._runner.context(held), held)
        return self._runner.run(held)

    def _ended(self, held: RunningAttempt, outcome: Outcome) -> None:
        """Queue the report of one attempt, and log a failure."""
        self.entries.pop(held.claimed.task_id, None)
        if held.verdict == INTERRUPTED and isinstance(outcome, Lost):
            # The attempt's process ended because this worker stops. That is a release, not a loss.
            outcome = Released(reason=STOPPED)
        if held.verdict == FENCED:
            # A fenced attempt has no right to report; the reaper decides its outcome.
            self._given_up.append((held.claimed.task_id, held.claimed.lease_token))
            self.show_kill_at()
        elif type(outcome) is Completed and outcome.commits:
            self.committing.start(self._report(held, outcome))
        else:
            self.reports.append(report := self._report(held, outcome))
            if type(outcome) is not Completed:
                self._failures.tell(held.plan.lane.action, report, held.plan.policy if self._decides else None)
        self._changed()

    def _report(self, held: RunningAttempt, outcome: Outcome) -> Report:
        report = report_of(held.claimed, outcome, leased_at=held.renewed_at)
        if self._rules is None:
            return report
        return msgspec.structs.replace(report, policy=held.plan.policy, opens_letter=self._rules.opens_dead_letters)

    def interrupt(self, entries: Iterable[RunningAttempt], verdict: str) -> None:
        """Stop attempts and record the reason. The first reason is kept."""
        for held in list(entries):
            if held.verdict is None:
                held.verdict = verdict
                if held.stop is not None:
                    held.stop.set()
                if held.task is not None:
                    held.task.cancel()

    def known(self) -> list[tuple[int, Any]]:
        """Return (task, token) of leases that this worker must not take over again: running, unsettled or given up."""
        held = [(entry.claimed.task_id, entry.claimed.lease_token) for entry in self.entries.values()]
        ended = [(one.task_id, one.lease_token) for one in self.ended()]
        return [*held, *ended, *self._given_up]

    def hand_back(self) -> list[Report]:
        """Return what can be reported before the process ends: ended attempts, and attempts that never started.

        Called from the heartbeat thread. An attempt sets `is_started` and then reads its stop reason; this method sets
        the stop reason and then reads `is_started`. So at least one of the two sees the other.
        """
        entries = self.snapshot()
        for held in entries:
            held.verdict = held.verdict or INTERRUPTED
        unstarted = [report_of(held.claimed, Released()) for held in entries if not held.is_started]
        return [*self.unsettled(), *unstarted]

    @property
    def count(self) -> int:
        """How many slots are taken."""
        return len(self.entries) + len(self.committing)

    def snapshot(self) -> list[RunningAttempt]:
        """Return a copy of the running attempts, for another thread."""
        return list(self.entries.copy().values())

    def unsettled(self) -> list[Report]:
        """Return reports not known to be settled, whether sent or not."""
        return [*(report for batch in self._under_way.copy() for report in batch), *self.reports]

    def ended(self) -> list[Report]:
        """Return unsettled reports and those being committed to datasets; the heartbeat keeps their leases."""
        return [*self.committing.reports(), *self.unsettled()]

    @property
    def is_empty(self) -> bool:
        """Whether nothing runs and nothing is left to report."""
        return not (self.count or self.reports or self._under_way)

    @contextmanager
    def sending(self) -> Iterator[list[Report]]:
        """Yield the next batch of reports, marked as being sent while the block runs. If it fails, requeue them."""
        batch = self.reports[: self._batch_size()]
        # A report is always in at least one of the two lists, because the heartbeat thread may read them at any moment.
        # A report that is sent twice is settled once.
        self._under_way.append(batch)
        del self.reports[: len(batch)]
        try:
            yield batch
        except BaseException:
            self.reports[:0] = batch
            raise
        finally:
            self._under_way.remove(batch)

    def _batch_size(self) -> int:
        """Return how many reports one transaction should carry, at least one.

        The batch is limited by the size of the outputs and by the number of nodes it releases (a few thousand), because
        other workers see these nodes only after the transaction commits.
        """
        bytes_left, followers_left = self._batch_bytes_max, BATCH_FOLLOWERS_MAX
        for count, report in enumerate(self.reports[: self._batch_max]):
            followers_left -= report.followers
            if followers_left < 0:
                return max(1, count)
            if type(report.outcome) is Completed:
                bytes_left -= len(report.outcome.output)
                if bytes_left < 0:
                    return max(1, count)
        return self._batch_max

    async def close(self) -> None:
        await self.committing.close()
        self.show_kill_at()
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._isolator is not None:
            await self._isolator.close()


def _refuse_isolated(actions: Mapping[str, Action[..., Any]]) -> None:
    """Refuse actions with process isolation: only an isolator knows where the child process imports the app from."""
    if isolated := sorted(name for name, action in actions.items() if action.isolation is Isolation.PROCESS):
        raise Invalid(
            f"{', '.join(isolated)} run in a process of their own, which this worker cannot start.",
            code="isolation_needs_app",
            advice="Start workers with `holdfast work module:app`, or pass `isolator=Isolated(orders)`.",
        )


async def _at_once(outcome: Outcome) -> Outcome:
    return outcome
