"""The log of failed attempts: one line per attempt, with what follows. Above a rate limit only a count is logged."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from holdfast.codec.clock import machine_now
from holdfast.core.tasks.backoff import jitter_of
from holdfast.core.tasks.classify import RetryReason, classify
from holdfast.core.tasks.failure_line import ELSEWHERE, failure_line, left_out, what_follows
from holdfast.core.tasks.outcome import Completed, Failed, Lost, TimedOut
from holdfast.core.tasks.policy import RetryPolicy
from holdfast.core.tasks.retry import decide
from holdfast.engine.leases import Refusal, Report
from holdfast.store.catalog import Catalog

ATTEMPTS_LOG = "holdfast.attempts"
log = logging.getLogger(ATTEMPTS_LOG)

LINES_MAX = 100
"""Lines per window: thousands of failures must not slow a worker down by logging."""
WINDOW_SECONDS = 10.0


class FailureLog:
    """The failure log of one process. Call `tell` only after the report is committed."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._window_at = clock()
        self._lines = 0
        self._unclassified: set[str] = set()

    def tell(self, action: str, report: Report, policy: RetryPolicy | None) -> None:
        """Log one attempt if it failed, timed out or was lost. Without a policy the line says that the decision is made
        elsewhere."""
        outcome = report.outcome
        if not isinstance(outcome, Failed | TimedOut | Lost) or not self._has_room():
            return
        if policy is None:
            failure_class: str = classify(outcome.failure, ()).reason
            follows = ELSEWHERE
        else:
            jitter = jitter_of(report.task_id, report.attempt)
            decision = decide(policy, outcome, retries=report.retries, losses=report.losses, jitter=jitter)
            failure_class = decision.classification.reason
            is_first = failure_class == RetryReason.UNCLASSIFIED and action not in self._unclassified
            self._unclassified.add(action)
            follows = what_follows(decision, now=machine_now(), is_first_of_action=is_first)
        log.warning(
            "%s",
            failure_line(
                task_id=report.task_id,
                action=action,
                attempt=report.attempt,
                outcome=outcome,
                failure_class=failure_class,
                follows=follows,
            ),
        )

    def publish_all(self, catalog: Catalog, reports: Iterable[Report], refused: Iterable[Refusal] = ()) -> None:
        """Log the attempts whose lanes and policies the catalog knows. Refused reports are skipped: they decided
        nothing."""
        losers = {(one.task_id, one.attempt) for one in refused}
        for report in reports:
            if type(report.outcome) is Completed or (report.task_id, report.attempt) in losers:
                continue
            if catalog.knows_lane(report.lane_id):
                policy = report.policy or catalog.policy(report.policy_id)
                self.tell(catalog.lane(report.lane_id).action, report, policy)

    def _has_room(self) -> bool:
        now = self._clock()
        if now - self._window_at >= WINDOW_SECONDS:
            if self._lines > LINES_MAX:
                log.warning("%s", left_out(self._lines - LINES_MAX, now - self._window_at))
            self._window_at, self._lines = now, 0
        self._lines += 1
        return self._lines <= LINES_MAX
