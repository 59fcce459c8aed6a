"""Audit chain: the fields that a row's hash covers, and the check of a chain of rows.

A row's hash is SHA-256 over its fields and the previous hash, each field with its length in front, so that no two
different rows have the same encoding. `verify` recomputes it in SQL by the same rule (`invariants/audit.sql`),
independent of this code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256

GENESIS = bytes(32)
"""The hash that the first row of a chain follows."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One row of the log. `before` and `after` are JSON exactly as stored."""

    tenant_id: int
    seq: int
    at: datetime
    actor: str
    verb: str
    subject_kind: str
    subject_id: str
    reason: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLink:
    """A record with its own hash and the previous one."""

    record: AuditRecord
    prev_hash: bytes
    hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainHead:
    """The end of a chain, stored separately from its rows."""

    seq: int
    hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """A hash that was noted earlier; without `seq` it may be any row's."""

    hash: bytes
    seq: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainBreak:
    """The first row at which a chain differs from what was written, and how."""

    seq: int
    code: str
    sentence: str


def digest(record: AuditRecord, prev_hash: bytes) -> bytes:
    """Return the hash of a record that follows `prev_hash`."""
    fields = (
        str(record.tenant_id),
        str(record.seq),
        str((record.at - _EPOCH) // timedelta(microseconds=1)),
        record.actor,
        record.verb,
        record.subject_kind,
        record.subject_id,
        record.reason,
        record.before,
        record.after,
        prev_hash.hex(),
    )
    made = sha256()
    for field in fields:
        encoded = field.encode()
        made.update(b"%d:%s," % (len(encoded), encoded))
    return made.digest()


class ChainCheck:
    """Checks one chain page by page and stops at the first row that differs from what was written."""

    def __init__(self, anchors: Iterable[Anchor] = ()) -> None:
        self.end = ChainHead(seq=0, hash=GENESIS)
        """The last row that was found intact."""
        self._anchors = [anchor for anchor in anchors if not _is_met(anchor, self.end)]

    def follow(self, links: Iterable[ChainLink]) -> ChainBreak | None:
        """Check the next rows in order."""
        for link in links:
            if (found := self._check(link)) is not None:
                return found
            self.end = ChainHead(seq=link.record.seq, hash=link.hash)
            self._anchors = [anchor for anchor in self._anchors if not _is_met(anchor, self.end)]
        return None

    def _check(self, link: ChainLink) -> ChainBreak | None:
        seq, expected = link.record.seq, self.end.seq + 1
        if seq > expected:
            rows = f"Row {expected} is" if seq == expected + 1 else f"Rows {expected} to {seq - 1} are"
            return ChainBreak(seq=expected, code="audit_row_missing", sentence=f"{rows} missing.")
        if seq < expected:
            return ChainBreak(seq=seq, code="audit_row_repeated", sentence=f"Row {seq} exists more than once.")
        if link.prev_hash != self.end.hash:
            before = f"row {seq - 1}" if seq > 1 else "the beginning"
            return ChainBreak(seq=seq, code="audit_row_unlinked", sentence=f"Row {seq} does not follow {before}.")
        if digest(link.record, link.prev_hash) != link.hash:
            return ChainBreak(
                seq=seq, code="audit_row_changed", sentence=f"Row {seq} was changed after it was written."
            )
        moved = next((anchor for anchor in self._anchors if anchor.seq == seq and anchor.hash != link.hash), None)
        if moved is not None:
            sentence = f"Row {seq} is not the one that was anchored: the chain was rewritten."
            return ChainBreak(seq=seq, code="audit_anchor_differs", sentence=sentence)
        return None

    def close(self, head: ChainHead | None) -> ChainBreak | None:
        """After the last row, check that it is the one the head names and that every anchor was met."""
        end, kept = self.end, head or ChainHead(seq=0, hash=GENESIS)
        if kept.seq > end.seq:
            rows = f"Row {kept.seq}" if kept.seq == end.seq + 1 else f"Rows {end.seq + 1} to {kept.seq}"
            is_are = "is" if kept.seq == end.seq + 1 else "are"
            sentence = f"{rows} {is_are} missing at the end."
            return ChainBreak(seq=end.seq + 1, code="audit_tail_missing", sentence=sentence)
        if kept.seq < end.seq:
            sentence = f"Row {kept.seq + 1} was added past the head, which ends at {kept.seq}."
            return ChainBreak(seq=kept.seq + 1, code="audit_head_behind", sentence=sentence)
        if kept.hash != end.hash:
            sentence = f"Row {end.seq} is not the one the head names: the chain was rewritten."
            return ChainBreak(seq=end.seq, code="audit_head_differs", sentence=sentence)
        if self._anchors:
            seq = min((anchor.seq for anchor in self._anchors if anchor.seq is not None), default=end.seq)
            sentence = "An anchored row is not in the chain: the chain was truncated or rewritten."
            return ChainBreak(seq=min(seq, end.seq + 1), code="audit_anchor_missing", sentence=sentence)
        return None


def _is_met(anchor: Anchor, end: ChainHead) -> bool:
    return anchor.hash == end.hash and anchor.seq in (None, end.seq)
