"""Validation and conversion of what remote workers send: leases, outcomes of attempts, and notes."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.codec import json_codec
from holdfast.core.tasks.failure import FAILED_CODE, LOST_CODE, TIMEOUT_CODE, Failure, FailureReport
from holdfast.core.tasks.outcome import Canceled, Completed, Failed, Lost, Outcome, Released, TimedOut
from holdfast.core.values import bounds
from holdfast.errors import Conflict, Invalid
from holdfast.protocol.worker import NOTHING, Completion, Id, ReportedFailure
from holdfast.server.worker_api.completed_reports import CompletedReport
from holdfast.server.worker_api.notes import EVENTS_MAX, notes_of

ENVELOPE_BYTES = 512 * 1024

_NO_OUTPUT = Completed(bytes(NOTHING))


def worker_number(worker_id: Id) -> int:
    """Return the number of a worker id; raise `Conflict` if it cannot be one."""
    text = str(worker_id)
    if not bounds.is_id(text):
        raise Conflict(
            f"Worker {text[:80]!r} is not registered.",
            code="worker_not_registered",
            advice="Register (POST /internal/workers) and use the returned id.",
            reason="unknown_worker",
        )
    return int(text)


def _attempt(attempt: int) -> int:
    if not 0 < attempt < 2**31:
        raise Invalid(f"There is no attempt {attempt}.", code="invalid_attempt")
    return attempt


def lease_of(body: Any) -> tuple[int, int, Any]:
    """Return the lease that a body names."""
    return bounds.task_number(body.task_id), _attempt(body.attempt), body.lease_token


def done_of(body: Completion, bytes_max: int) -> CompletedReport:
    if body.status == "completed" and body.outputs == NOTHING and not body.events:
        # The usual case when a queue is drained, thousands per second.
        return CompletedReport(
            task_id=bounds.task_number(body.task_id),
            attempt=_attempt(body.attempt),
            lease_token=body.lease_token,
            outcome=_NO_OUTPUT,
        )
    if len(body.events or ()) > EVENTS_MAX:
        raise Invalid(f"At most {EVENTS_MAX} events go with one completion.", code="invalid_batch")
    return CompletedReport(
        task_id=bounds.task_number(body.task_id),
        attempt=_attempt(body.attempt),
        lease_token=body.lease_token,
        outcome=_outcome(body, bytes_max),
        notes=list(notes_of(body.events)),
        input=None if body.input == NOTHING else plain(body.input, bytes_max=bytes_max, what="input"),
    )


def plain(raw: msgspec.Raw, *, bytes_max: int, what: str) -> bytes:
    """Normalize a client's JSON for storage: validated, without whitespace."""
    encoded = bytes(raw)
    if encoded == b"null":
        return encoded
    try:
        return json_codec.encode(json_codec.decode(encoded), bytes_max=bytes_max, what=what)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"The {what} cannot be used: {error}.", code="invalid_body") from error
    except RecursionError:
        raise Invalid(f"The {what} is nested too deeply.", code="payload_too_deep") from None


def _outcome(body: Completion, bytes_max: int) -> Outcome:
    match body.status:
        case "completed" | "succeeded":
            return Completed(plain(body.outputs, bytes_max=bytes_max, what="output"))
        case "failed":
            return Failed(_failure(body.error, FAILED_CODE))
        case "timed_out":
            return TimedOut(_failure(body.error, TIMEOUT_CODE))
        case "lost":
            return Lost(_failure(body.error, LOST_CODE))
        case "canceled":
            return Canceled()
        case "released":
            return Released()


def _failure(encoded: ReportedFailure | None, code: str) -> Failure:
    """Convert a reported failure, with `code` as the default code."""
    error = encoded or ReportedFailure(message="The worker gave no reason.")
    seconds = error.retry_after_seconds
    if seconds is not None and not (math.isfinite(seconds) and 0 <= seconds <= 10 * 365 * 86400):
        raise Invalid(
            "retry_after_seconds must be a finite number of seconds, not negative.", code="invalid_retry_after"
        )
    return Failure(
        code=code if error.code in (None, "", FAILED_CODE) else error.code,
        message=error.message or "",
        type=error.type or "",
        traceback=error.traceback or "",
        said=None if error.said is None else FailureReport(error.said),
        retry_after=None if seconds is None else timedelta(seconds=seconds),
        bases=tuple(error.bases or ()),
        frames=tuple(error.frames or ()),
        effect=error.effect or "",
    )
