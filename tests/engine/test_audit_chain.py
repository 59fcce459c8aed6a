"""Whoever rewrites the audit log is found out: the tables refuse, the chain tells, an anchor kept elsewhere knows."""

from __future__ import annotations

import asyncpg
import pytest
from tests.engine.test_audit import WHO, rows

from holdfast.engine.audit import Change, audit, verify_audit
from holdfast.engine.queries.verify import verify
from holdfast.errors import Invalid
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.store.database import Session
from holdfast.store.statements import sql


@pytest.fixture
async def chain(engine):
    """Six rows, checked in pages of four."""
    for number in range(6):
        async with engine.database.transaction() as session:
            change = Change(verb="queue.pause", subject_kind="queue", subject_id=str(number), after={"paused": True})
            await audit(session, DEFAULT_TENANT_ID, [change], **WHO)
    return [row.hash for row in reversed(await rows(engine))]


@pytest.mark.superuser
@pytest.mark.parametrize("script", ["update {} set seq = seq", "delete from {}", "truncate {}"])
@pytest.mark.parametrize("table", ["holdfast.audit", "holdfast.audit_head"])
async def test_the_tables_refuse_to_be_rewritten(engine, chain, script, table):
    if (table, script[:6]) == ("holdfast.audit_head", "update"):
        script = "update {} set seq = seq - 1"
    async with engine.database.session() as session:
        await session.execute("set session_replication_role = replica")
        with pytest.raises(asyncpg.RestrictViolationError, match="append-only"):
            await session.execute(script.format(table))
        await session.execute("reset session_replication_role")


async def test_the_owner_of_the_tables_has_no_right_to_rewrite_them(engine):
    for table, right in (("audit", "update"), ("audit", "delete"), ("audit", "truncate"), ("audit_head", "delete")):
        granted = await engine.database.fetchval(
            "select exists (select from information_schema.table_privileges where table_schema = 'holdfast' "
            "and table_name = $1 and privilege_type = $2)",
            table,
            right.upper(),
        )
        assert not granted


async def tamper(engine, script):
    """As somebody who may do anything: the triggers come off, and are put back as if nothing had been."""
    async with engine.database.session() as session:
        await session.execute(f"""
            alter table holdfast.audit disable trigger all; alter table holdfast.audit_head disable trigger all;
            {script};
            alter table holdfast.audit enable always trigger append_only;
            alter table holdfast.audit_head enable always trigger append_only;
            alter table holdfast.audit_head enable always trigger only_forward""")


WITHOUT_KEY = "alter table holdfast.audit drop constraint audit_pkey;"


TAMPERED = {
    "edit at": ("update holdfast.audit set at = at - interval '1 microsecond' where seq = 3", 3),
    "edit actor": ("update holdfast.audit set actor = 'bob' where seq = 3", 3),
    "edit verb": ("update holdfast.audit set verb = 'queue.resume' where seq = 3", 3),
    "edit subject kind": ("update holdfast.audit set subject_kind = 'task' where seq = 3", 3),
    "edit subject id": ("update holdfast.audit set subject_id = '9' where seq = 3", 3),
    "edit reason": ("update holdfast.audit set reason = '' where seq = 3", 3),
    "edit before": ("update holdfast.audit set before = '{}' where seq = 3", 3),
    "edit after": ("update holdfast.audit set after = '{\"paused\":false}' where seq = 3", 3),
    "rewrite the same JSON": ("update holdfast.audit set after = '{\"paused\": true}' where seq = 3", 3),
    "edit hash": ("update holdfast.audit set hash = sha256('x') where seq = 3", 3),
    "edit prev_hash": ("update holdfast.audit set prev_hash = sha256('x') where seq = 3", 3),
    "edit the first": ("update holdfast.audit set actor = 'bob' where seq = 1", 1),
    "edit the last": ("update holdfast.audit set actor = 'bob' where seq = 6", 6),
    "renumber": ("update holdfast.audit set seq = 9 where seq = 6", 6),
    "delete the first": ("delete from holdfast.audit where seq = 1", 1),
    "delete in the middle": ("delete from holdfast.audit where seq in (3, 4)", 3),
    "delete at a page": ("delete from holdfast.audit where seq = 5", 5),
    "cut the tail": ("delete from holdfast.audit where seq > 4", 5),
    "delete everything": ("delete from holdfast.audit", 1),
    "swap": (
        f"""{WITHOUT_KEY} update holdfast.audit set seq = case seq when 3 then 4 else 3 end where seq in (3, 4)""",
        3,
    ),
    "close the gap": (
        f"""{WITHOUT_KEY} delete from holdfast.audit where seq = 3;
             update holdfast.audit set seq = seq - 1 where seq > 3""",
        3,
    ),
    "forge one at the end": (
        """insert into holdfast.audit select tenant_id, 7, at, 'bob', verb, subject_kind, subject_id, reason, before,
             after, hash, sha256('x') from holdfast.audit where seq = 6""",
        7,
    ),
    "forge one in between": (
        f"""{WITHOUT_KEY} insert into holdfast.audit select tenant_id, 3, at, 'bob', verb, subject_kind, subject_id,
             reason, before, after, hash, sha256('x') from holdfast.audit where seq = 2""",
        3,
    ),
    "move the head back with the tail": (
        """delete from holdfast.audit where seq = 6; update holdfast.audit_head set seq = 5""",
        5,
    ),
    "forget the head": ("delete from holdfast.audit_head", 1),
    "write the head anew": ("update holdfast.audit_head set hash = sha256('x')", 6),
}


@pytest.mark.breaks_invariants
@pytest.mark.superuser
@pytest.mark.parametrize("name", TAMPERED)
async def test_tampering_is_found_and_the_first_bad_row_named(engine, chain, name, monkeypatch):
    monkeypatch.setattr("holdfast.engine.audit.PAGE", 4)
    script, first = TAMPERED[name]
    await tamper(engine, script)
    verified = await verify_audit(engine.database, DEFAULT_TENANT_ID)
    assert verified.broken is not None and verified.broken.seq == first, verified
    chained = (
        "audit_rows_are_what_was_written",
        "audit_rows_follow_one_another",
        "audit_heads_name_the_last_row",
    )
    assert (await verify(engine.database, only=chained)).violations


@pytest.mark.breaks_invariants
async def test_triggers_left_off_are_found(engine, chain):
    async with engine.database.session() as session:
        await session.execute("alter table holdfast.audit disable trigger append_only")
    assert [one.name for one in (await verify(engine.database)).violations] == ["the_audit_log_is_append_only"]


async def test_an_anchor_holds_as_long_as_the_chain_grows_behind_it(engine, chain):
    anchor = (await verify_audit(engine.database, DEFAULT_TENANT_ID)).anchor
    assert anchor == f"6:{chain[-1]}"
    async with engine.database.transaction() as session:
        await audit(session, DEFAULT_TENANT_ID, [Change(verb="x", subject_kind="x", subject_id="1")], **WHO)
    for given in (anchor, chain[2]):
        verified = await verify_audit(engine.database, DEFAULT_TENANT_ID, anchors=[given])
        assert (verified.checked, verified.broken) == (7, None)


@pytest.mark.superuser
async def test_an_anchor_finds_a_chain_cut_together_with_its_head(engine, chain):
    """Sound to look at: only what was noted elsewhere tells."""
    await tamper(
        engine,
        f"delete from holdfast.audit where seq > 4; update holdfast.audit_head set seq = 4, hash = '\\x{chain[3]}'",
    )
    assert (await verify_audit(engine.database, DEFAULT_TENANT_ID)).is_sound
    for given in (f"6:{chain[5]}", chain[5]):
        found = (await verify_audit(engine.database, DEFAULT_TENANT_ID, anchors=[given])).broken
        assert found is not None and found.code == "audit_anchor_missing"


@pytest.mark.parametrize("bad", ["", "6:", "6", "x" * 64, "abc:" + "0" * 64, "6:" + "0" * 62])
async def test_what_is_no_anchor_is_refused(engine, bad):
    with pytest.raises(Invalid, match="not an anchor"):
        await verify_audit(engine.database, DEFAULT_TENANT_ID, anchors=[bad])


@pytest.mark.interposes
async def test_checking_sees_one_moment_while_others_write(engine, chain, monkeypatch):
    """A row appended after the rows were read, and before the head is, is no row too many."""
    fetch = Session.fetch

    async def fetch_late(self, statement, *arguments):
        if statement == sql("read_audit_head"):
            async with engine.database.transaction() as session:
                await audit(session, DEFAULT_TENANT_ID, [Change(verb="x", subject_kind="x", subject_id="1")], **WHO)
        return await fetch(self, statement, *arguments)

    monkeypatch.setattr(Session, "fetch", fetch_late)
    verified = await verify_audit(engine.database, DEFAULT_TENANT_ID)
    assert (verified.checked, verified.broken, len(await rows(engine))) == (6, None, 7)
