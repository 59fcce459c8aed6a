"""Reports of attempts in the server's wire format."""

from __future__ import annotations

from typing import assert_never

import msgspec

from holdfast.core.tasks.failure import Failure
from holdfast.core.tasks.outcome import Canceled, Completed, Failed, Lost, Outcome, Released, TimedOut
from holdfast.engine.leases import Report
from holdfast.protocol.worker import NOTHING, Completion, ReportedFailure


def completion(report: Report) -> Completion:
    """Convert a report to its wire format."""
    status, failure = _status(report.outcome)
    outcome = report.outcome
    return Completion(
        str(report.task_id),
        report.attempt,
        report.lease_token,
        status,  # type: ignore[arg-type]
        outputs=msgspec.Raw(outcome.output) if type(outcome) is Completed else NOTHING,
        error=None if failure is None else _reported(failure),
        input=NOTHING if failure is None or report.input is None else msgspec.Raw(report.input),
    )


def _status(outcome: Outcome) -> tuple[str, Failure | None]:
    match outcome:
        case Completed():
            return "completed", None
        case Failed(failure):
            return "failed", failure
        case TimedOut(failure):
            return "timed_out", failure
        case Lost(failure):
            return "lost", failure
        case Canceled():
            return "canceled", None
        case Released():
            return "released", None
        case _:
            assert_never(outcome)


def _reported(failure: Failure) -> ReportedFailure:
    return ReportedFailure(
        failure.code,
        failure.message,
        failure.type,
        failure.traceback,
        said=None if failure.said is None else failure.said.value,
        retry_after_seconds=None if failure.retry_after is None else failure.retry_after.total_seconds(),
        bases=list(failure.bases),
        frames=list(failure.frames),
        effect=failure.effect,
    )
