"""Operations for administration: audit log, invariants, state of the database, throughput and wake-up hints."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from holdfast.core.identity.access import Access
from holdfast.engine import audit
from holdfast.engine.audit import AuditRow, AuditVerified
from holdfast.engine.queries import verify
from holdfast.engine.queries.checkup import Finding, check_up
from holdfast.engine.queries.throughput import Throughput, read_pulse
from holdfast.engine.queries.verify import Verified
from holdfast.engine.wakeups import outbox
from holdfast.engine.wakeups.outbox import WakeView
from holdfast.operations.context import OperationContext
from holdfast.operations.operation import Request, operation
from holdfast.operations.paging import PAGE, Limit, rows_of
from holdfast.operations.shared_types import Empty

VERIFY_SECONDS_MAX = 600.0


class ListAudit(Request, frozen=True, kw_only=True):
    """Filters. `before` is the `next` of the previous page."""

    actor: str | None = None
    verb: str | None = None
    subject_kind: str | None = None
    subject_id: str | None = None
    since_seconds: float | None = None
    before: int | None = None
    limit: Limit = PAGE


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    rows: list[AuditRow]
    next: int | None


class VerifyAudit(Request, frozen=True, kw_only=True):
    """Anchors noted earlier; may be repeated."""

    anchor: list[str] = msgspec.field(default_factory=list)


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    findings: list[Finding]


@operation("audit.list", "GET /api/v1/audit", Access.VIEWER)
async def list_audit(context: OperationContext, request: ListAudit) -> AuditPage:
    """Lists privileged changes, newest first, in pages."""
    rows, following = await audit.audit_page(
        context.database,
        context.tenant_id,
        actor=request.actor,
        verb=request.verb,
        subject_kind=request.subject_kind,
        subject_id=request.subject_id,
        since_seconds=request.since_seconds,
        before=request.before,
        limit=rows_of(request.limit),
    )
    return AuditPage(rows=rows, next=following)


@operation("audit.verify", "GET /api/v1/audit/verify", Access.OPERATOR, seconds_max=VERIFY_SECONDS_MAX, is_long=True)
async def verify_audit(context: OperationContext, request: VerifyAudit) -> AuditVerified:
    """Recomputes the whole hash chain of the audit log."""
    return await audit.verify_audit(context.database, context.tenant_id, anchors=request.anchor)


@operation(
    "verify",
    "GET /api/v1/verify",
    Access.OPERATOR,
    commands=("verify",),
    seconds_max=VERIFY_SECONDS_MAX,
    is_whole=True,
    is_long=True,
)
async def verify_invariants(context: OperationContext, request: Empty) -> Verified:
    """Checks the invariants on the live database."""
    return await verify.verify(context.database)


@operation("checkup", "GET /api/v1/checkup", Access.OPERATOR, commands=("doctor",), is_whole=True)
async def examine(context: OperationContext, request: Empty) -> Findings:
    """Checks the database and the flow of work, with a fix for each finding."""
    silent = context.engine.silent_seconds
    return Findings(findings=await check_up(context.database, now=datetime.now(UTC), silent_seconds=silent))


@operation("pulse", "GET /api/v1/pulse", Access.VIEWER, commands=("top",), is_whole=True)
async def read_throughput(context: OperationContext, request: Empty) -> Throughput:
    """Returns two counters, of enqueued and finished tasks, whose growth is the throughput."""
    return await read_pulse(context.database)


class WriteHints(Request, frozen=True, kw_only=True):
    """The limit of outstanding hints per queue; by default the server's setting."""

    hints_max: int | None = None
    reason: str = ""


class StopHints(Request, frozen=True, kw_only=True):
    reason: str = ""


@operation("wake.show", "GET /api/v1/wake", Access.VIEWER, is_whole=True)
async def show_wake(context: OperationContext, request: Empty) -> WakeView:
    """Shows whether hints are written for SQS or Redis, and the state of the carrier."""
    return await outbox.read_wake(context.database)


@operation("wake.on", "POST /api/v1/wake/on", Access.ADMIN, is_whole=True)
async def write_hints(context: OperationContext, request: WriteHints) -> WakeView:
    """Writes a hint with every change that makes a task claimable; needs the owner of the schema."""
    most = request.hints_max if request.hints_max is not None else context.engine.settings.wake.hints_max
    return await outbox.write_hints(context.engine, True, hints_max=most, actor=context.actor, reason=request.reason)


@operation("wake.off", "POST /api/v1/wake/off", Access.ADMIN, is_whole=True)
async def stop_hints(context: OperationContext, request: StopHints) -> WakeView:
    """Stops writing hints, and deletes the outstanding ones."""
    return await outbox.write_hints(context.engine, False, hints_max=None, actor=context.actor, reason=request.reason)


OPERATIONS = (list_audit, verify_audit, verify_invariants, examine, read_throughput, show_wake, write_hints, stop_hints)
