"""The chain of the audit log: what a hash covers, and what a check of the chain finds."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.identity.audit_chain import GENESIS, Anchor, AuditRecord, ChainCheck, ChainHead, ChainLink, digest

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
FIRST = AuditRecord(
    tenant_id=1,
    seq=1,
    at=NOON,
    actor="anna",
    verb="queue.pause",
    subject_kind="queue",
    subject_id="mail",
    reason="smtp is down",
    before='{"paused":false}',
    after='{"paused":true}',
)


def a_chain(length=4) -> list[ChainLink]:
    links, prev_hash = [], GENESIS
    for seq in range(1, length + 1):
        record = replace(FIRST, seq=seq, at=NOON + timedelta(microseconds=seq))
        links.append(ChainLink(record=record, prev_hash=prev_hash, hash=digest(record, prev_hash)))
        prev_hash = links[-1].hash
    return links


def checked(links, head=None, anchors=()):
    check = ChainCheck(anchors)
    kept = head or ChainHead(seq=len(links), hash=links[-1].hash if links else GENESIS)
    return check.follow(links) or check.close(kept)


def changed(value):
    match value:
        case int():
            return value + 1
        case str():
            return value + " "
        case datetime():
            return value + timedelta(microseconds=1)


def test_a_whole_chain_is_sound():
    assert checked(a_chain()) is None
    assert checked([]) is None


@pytest.mark.parametrize("field", [field.name for field in fields(AuditRecord)])
def test_the_hash_covers_every_field(field):
    other = replace(FIRST, **{field: changed(getattr(FIRST, field))})
    assert digest(other, GENESIS) != digest(FIRST, GENESIS)


def test_the_hash_covers_the_hash_before_it():
    assert digest(FIRST, GENESIS) != digest(FIRST, bytes(31) + b"\1")


@given(st.text(), st.text(), st.text(), st.text())
def test_text_cannot_wander_from_field_to_field(actor, verb, other_actor, other_verb):
    one, other = replace(FIRST, actor=actor, verb=verb), replace(FIRST, actor=other_actor, verb=other_verb)
    assert (digest(one, GENESIS) == digest(other, GENESIS)) == ((actor, verb) == (other_actor, other_verb))


def test_the_hash_is_the_same_in_every_version():
    assert digest(FIRST, GENESIS).hex() == "c8408ec2ab8ffd1cf2c062c537e337d4db0df3726691253eaadac9cb8c994505"


def test_a_changed_row_is_named():
    links = a_chain()
    links[1] = replace(links[1], record=replace(links[1].record, reason="none of your business"))
    found = checked(links)
    assert (found.seq, found.code) == (2, "audit_row_changed")


def test_a_changed_row_with_a_new_hash_breaks_the_next():
    links = a_chain()
    record = replace(links[1].record, actor="nobody")
    links[1] = ChainLink(record=record, prev_hash=links[1].prev_hash, hash=digest(record, links[1].prev_hash))
    found = checked(links)
    assert (found.seq, found.code) == (3, "audit_row_unlinked")


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_a_missing_row_is_named(gone):
    links = a_chain()
    head = ChainHead(seq=4, hash=links[-1].hash)
    del links[gone - 1]
    found = checked(links, head)
    assert (found.seq, found.code, str(gone) in found.sentence) == (gone, "audit_row_missing", True)


def test_a_cut_tail_is_named():
    links = a_chain()
    found = checked(links[:2], ChainHead(seq=4, hash=links[-1].hash))
    assert (found.seq, found.code, found.sentence) == (3, "audit_tail_missing", "Rows 3 to 4 are missing at the end.")


def test_swapped_rows_are_named():
    links = a_chain()
    first, second = links[1], links[2]
    links[1] = replace(second, record=replace(second.record, seq=2))
    links[2] = replace(first, record=replace(first.record, seq=3))
    found = checked(links)
    assert (found.seq, found.code) == (2, "audit_row_unlinked")


def test_a_repeated_row_is_named():
    links = a_chain()
    links.insert(2, links[1])
    found = checked(links)
    assert (found.seq, found.code) == (2, "audit_row_repeated")


def test_a_row_past_the_head_is_named():
    links = a_chain()
    found = checked(links, ChainHead(seq=3, hash=links[2].hash))
    assert (found.seq, found.code) == (4, "audit_head_behind")


def test_a_chain_written_anew_differs_from_its_head():
    forged = a_chain()
    record = replace(FIRST, reason="all is well", seq=4)
    forged[3] = ChainLink(record=record, prev_hash=forged[2].hash, hash=digest(record, forged[2].hash))
    found = checked(forged, ChainHead(seq=4, hash=a_chain()[-1].hash))
    assert (found.seq, found.code) == (4, "audit_head_differs")


@pytest.mark.parametrize("seq", [None, 2])
def test_an_anchor_shows_a_chain_that_was_written_anew_with_its_head(seq):
    noted = Anchor(hash=a_chain()[1].hash, seq=seq)
    assert checked(a_chain(), anchors=[noted]) is None
    record = replace(FIRST, actor="nobody")
    forged = [ChainLink(record=record, prev_hash=GENESIS, hash=digest(record, GENESIS))]
    for link in a_chain()[1:]:
        forged.append(
            ChainLink(record=link.record, prev_hash=forged[-1].hash, hash=digest(link.record, forged[-1].hash))
        )
    assert checked(forged) is None
    found = checked(forged, anchors=[noted])
    assert found.code == ("audit_anchor_missing" if seq is None else "audit_anchor_differs")


def test_an_anchor_past_the_end_shows_a_chain_cut_with_its_head():
    links = a_chain()
    found = checked(links[:2], anchors=[Anchor(hash=links[3].hash, seq=4)])
    assert (found.seq, found.code) == (3, "audit_anchor_missing")


def test_an_anchor_counts_only_at_its_own_row():
    found = checked(a_chain(), anchors=[Anchor(hash=a_chain()[1].hash, seq=3)])
    assert (found.seq, found.code) == (3, "audit_anchor_differs")


def test_pages_are_followed_as_one_chain():
    links, check = a_chain(), ChainCheck()
    assert [check.follow(links[:2]), check.follow(links[2:])] == [None, None]
    assert check.end == ChainHead(seq=4, hash=links[-1].hash)
