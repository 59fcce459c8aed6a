"""Care: the audit log, the invariants, the state of the database, and how fast work goes through it."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from holdfast.core.access import Access
from holdfast.desk.clerk import Clerk
from holdfast.desk.operation import Request, operation
from holdfast.desk.paging import PAGE, Limit, next_of
from holdfast.dispatcher import audit, verify
from holdfast.dispatcher.audit import AuditRow, AuditVerified
from holdfast.dispatcher.checkup import Finding, check_up
from holdfast.dispatcher.pulse import Pulse, read_pulse
from holdfast.dispatcher.verify import Verified

VERIFY_SECONDS_MAX = 600.0


class ListAudit(Request, frozen=True, kw_only=True):
    """Filters. `before` is the `next` of the page before."""

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


class Nothing(Request, frozen=True, kw_only=True):
    """Nothing to say."""


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    findings: list[Finding]


@operation("audit.list", "GET /api/v1/audit", Access.VIEWER)
async def list_audit(clerk: Clerk, asked: ListAudit) -> AuditPage:
    """Lists privileged changes, newest first, in pages."""
    rows = await audit.list_audit(
        clerk.database,
        clerk.tenant_id,
        actor=asked.actor,
        verb=asked.verb,
        subject_kind=asked.subject_kind,
        subject_id=asked.subject_id,
        since_seconds=asked.since_seconds,
        before=asked.before,
        limit=asked.limit,
    )
    following = next_of(rows, asked.limit, lambda row: str(row.seq))
    return AuditPage(rows=rows, next=None if following is None else int(following))


@operation("audit.verify", "GET /api/v1/audit/verify", Access.OPERATOR, seconds_max=VERIFY_SECONDS_MAX)
async def verify_audit(clerk: Clerk, asked: VerifyAudit) -> AuditVerified:
    """Recomputes the whole chain of the audit log."""
    return await audit.verify_audit(clerk.database, clerk.tenant_id, anchors=asked.anchor)


@operation("verify", "GET /api/v1/verify", Access.OPERATOR, commands=("verify",), seconds_max=VERIFY_SECONDS_MAX)
async def verify_invariants(clerk: Clerk, asked: Nothing) -> Verified:
    """Checks the invariants on the live database."""
    return await verify.verify(clerk.database)


@operation("checkup", "GET /api/v1/checkup", Access.OPERATOR, commands=("doctor",))
async def examine(clerk: Clerk, asked: Nothing) -> Findings:
    """Checks the database and the flow of work, with a fix for each finding."""
    return Findings(findings=await check_up(clerk.database, now=datetime.now(UTC)))


@operation("pulse", "GET /api/v1/pulse", Access.VIEWER, commands=("top",))
async def take_pulse(clerk: Clerk, asked: Nothing) -> Pulse:
    """Gives two counters whose growth tells how much work comes and goes."""
    return await read_pulse(clerk.database)


OPERATIONS = (list_audit, verify_audit, verify_invariants, examine, take_pulse)
