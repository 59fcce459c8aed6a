"""The audit log: record privileged changes in the transaction that makes them, list them, and verify the hash chain.

`audit` takes the lock that orders the writers of a tenant, so a command calls it last, just before its commit: a
transaction that has this lock waits for no other lock. A change that is rolled back leaves no row, and a row that
cannot be written rolls its change back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.identity.audit_chain import (
    GENESIS,
    Anchor,
    AuditRecord,
    ChainBreak,
    ChainCheck,
    ChainHead,
    ChainLink,
    digest,
)
from holdfast.core.values import bounds
from holdfast.engine.queries.pages import ID_MAX, valid_limit
from holdfast.errors import Invalid
from holdfast.store.database import Database, Session
from holdfast.store.sql.identity import audit as audit_sql

SCAN_ROWS_MAX = 10_000
PAGE = 2_000


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One change of one subject: its state before and after."""

    verb: str
    subject_kind: str
    subject_id: str
    before: Any = None
    after: Any = None


async def audit(session: Session, tenant_id: int, changes: Sequence[Change], *, actor: str, reason: str) -> None:
    """Record changes in the caller's transaction. Call it last."""
    assert session.is_in_transaction()
    if not changes:
        return
    if reason:
        bounds.valid_reason(reason)
    bounds.valid_actor(actor)
    head = await audit_sql.lock_audit_head(session, tenant_id, GENESIS)
    links = _chained(tenant_id, changes, actor, reason, head.at, ChainHead(seq=head.seq, hash=head.hash))
    records = [link.record for link in links]
    written = await audit_sql.append_audit(
        session,
        tenant_id,
        head.seq,
        records[-1].seq,
        links[-1].hash,
        head.at,
        actor,
        reason,
        [record.seq for record in records],
        [record.verb for record in records],
        [record.subject_kind for record in records],
        [record.subject_id for record in records],
        [record.before for record in records],
        [record.after for record in records],
        [link.prev_hash for link in links],
        [link.hash for link in links],
    )
    assert len(written) == len(changes), "the head of an audit chain moved under its lock"


async def record(database: Database, tenant_id: int, change: Change, *, actor: str, reason: str = "") -> None:
    """Record an action that changes nothing else, in a transaction of its own."""
    async with database.transaction() as session:
        await audit(session, tenant_id, [change], actor=actor, reason=reason)


def _chained(
    tenant_id: int, changes: Sequence[Change], actor: str, reason: str, at: datetime, head: ChainHead
) -> list[ChainLink]:
    links: list[ChainLink] = []
    prev_hash = head.hash
    for seq, change in enumerate(changes, start=head.seq + 1):
        record = AuditRecord(
            tenant_id=tenant_id,
            seq=seq,
            at=at,
            actor=actor,
            verb=change.verb,
            subject_kind=change.subject_kind,
            subject_id=change.subject_id,
            reason=reason,
            before=_canonical(change.before),
            after=_canonical(change.after),
        )
        links.append(ChainLink(record=record, prev_hash=prev_hash, hash=digest(record, prev_hash)))
        prev_hash = links[-1].hash
    return links


def _canonical(value: Any) -> str:
    """Encode a value as JSON with sorted keys, so that equal values give equal text."""
    return json.dumps(msgspec.to_builtins(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One audit row, decoded for display. `hash` may be stored elsewhere as an anchor."""

    seq: int
    at: datetime
    actor: str
    verb: str
    subject_kind: str
    subject_id: str
    reason: str
    before: Any
    after: Any
    hash: str


async def list_audit(
    database: Database,
    tenant_id: int,
    *,
    actor: str | None = None,
    verb: str | None = None,
    subject_kind: str | None = None,
    subject_id: str | None = None,
    since_seconds: float | None = None,
    before: int | None = None,
    limit: int = 50,
    from_seq: int = -ID_MAX,
) -> list[AuditRow]:
    """Return a page of audit rows, newest first. Pass the `seq` of the last row as `before` to get the next page."""
    valid_limit(limit)
    asked = (ID_MAX if before is None else before, actor, verb, subject_kind, subject_id, since_seconds, limit)
    return [_row(row) for row in await audit_sql.list_audit(database, tenant_id, *asked, from_seq)]


async def audit_page(
    database: Database, tenant_id: int, *, before: int | None = None, limit: int = 50, **filters: Any
) -> tuple[list[AuditRow], int | None]:
    """Return a page of audit rows and the `before` of the next page, or None if there are no more rows.

    One call reads at most `SCAN_ROWS_MAX` rows, so a page of a selective filter may be short although more rows follow.
    """
    if before is not None and before > ID_MAX:
        raise Invalid(f"No row of the log has so large a number as {before}.", code="invalid_value")
    head = await audit_sql.read_audit_head(database, tenant_id)
    if head is None:
        return [], None
    before = min(ID_MAX if before is None else before, head.seq + 1)
    from_seq = before - max(limit, SCAN_ROWS_MAX)
    rows = await list_audit(database, tenant_id, before=before, limit=limit, from_seq=from_seq, **filters)
    if len(rows) == limit:
        return rows, rows[-1].seq
    return rows, from_seq if from_seq > 1 else None


def _row(row: audit_sql.ListAuditRow) -> AuditRow:
    found = {name: value for name, value in row._asdict().items() if name != "tenant_id"}
    decoded = {name: json.loads(found[name]) for name in ("before", "after")}
    return AuditRow(**{**found, **decoded, "hash": found["hash"].hex()})


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditVerified:
    """The result of a verification: how many rows are intact, the anchor to store elsewhere, and the first break, if
    any."""

    checked: int
    anchor: str | None
    broken: ChainBreak | None

    @property
    def is_sound(self) -> bool:
        return self.broken is None


async def verify_audit(database: Database, tenant_id: int, *, anchors: Sequence[str] = ()) -> AuditVerified:
    """Recompute a tenant's hash chain from its first row, in one snapshot. Concurrent writers are not blocked."""
    check = ChainCheck(_anchor(text) for text in anchors)
    broken: ChainBreak | None = None
    async with database.transaction() as session:
        await session.execute("set transaction isolation level repeatable read, read only")
        after = -ID_MAX
        while broken is None and (rows := await audit_sql.read_audit_chain(session, tenant_id, after, PAGE)):
            broken = check.follow(_link(row) for row in rows)
            after = rows[-1].seq
        if broken is None:
            row = await audit_sql.read_audit_head(session, tenant_id)
            broken = check.close(None if row is None else ChainHead(seq=row.seq, hash=row.hash))
    end = check.end
    return AuditVerified(checked=end.seq, anchor=f"{end.seq}:{end.hash.hex()}" if end.seq else None, broken=broken)


def _link(row: audit_sql.ReadAuditChainRow) -> ChainLink:
    prev_hash, found = row.prev_hash, row._asdict()
    del found["prev_hash"], found["hash"]
    return ChainLink(record=AuditRecord(**found), prev_hash=prev_hash, hash=row.hash)


def _anchor(text: str) -> Anchor:
    """Parse an anchor: `SEQ:HASH` as `verify` prints it, or the hash alone."""
    seq, colon, digits = text.strip().rpartition(":")
    try:
        noted = bytes.fromhex(digits)
        number = int(seq) if colon else None
    except ValueError:
        noted, number = b"", None
    if len(noted) != len(GENESIS):
        raise Invalid(
            f"{text[:80]!r} is not an anchor.",
            code="invalid_anchor",
            advice="An anchor is SEQ:HASH as `holdfast audit verify` prints it, or the 64 digits alone.",
        )
    return Anchor(hash=noted, seq=number)
