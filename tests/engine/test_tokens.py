"""Tokens and members as verbs: what is kept, what is refused, and that every change is in the audit log with it."""

from __future__ import annotations

import pytest

from holdfast.core.identity import api_token
from holdfast.core.identity.id_token import Person
from holdfast.engine.audit import Change, list_audit, record, verify_audit
from holdfast.engine.identity.members import add_member, find_membership, list_members, remove_member
from holdfast.engine.identity.tenants import create_tenant
from holdfast.engine.identity.tokens import create_token, find_bearer, list_tokens, revoke_token
from holdfast.errors import Conflict, Invalid, NotFound

OURS = {"role": "viewer", "actor": "ada"}


@pytest.fixture
def database(engine):
    return engine.database


async def test_nothing_that_is_kept_opens_anything(database):
    made = await create_token(database, 1, name="ci", **OURS)
    secret = api_token.parse(made.token).secret
    row = await database.fetchrow("select t::text as everything from holdfast.token t")
    assert secret not in row["everything"]
    audit = await database.fetchval("select string_agg(a::text, '') from holdfast.audit a")
    assert secret not in audit and secret.encode().hex() not in audit


async def test_a_token_is_made_and_revoked_with_its_audit_rows(database):
    made = await create_token(database, 1, name="ci", reason="deploys", **OURS)
    assert await revoke_token(database, 1, made.token_id, actor="berta", reason="left") == made.token_id
    revoked, created = await list_audit(database, 1)
    assert (created.verb, created.subject_id, created.actor, created.reason) == (
        "token.create",
        made.token_id,
        "ada",
        "deploys",
    )
    assert created.after == {"name": "ci", "role": "viewer", "queues": None, "expires_at": None}
    assert (revoked.verb, revoked.actor, revoked.reason) == ("token.revoke", "berta", "left")
    assert (await verify_audit(database, 1)).is_sound


async def test_a_change_without_its_audit_row_did_not_happen(database):
    with pytest.raises(Invalid):
        await create_token(database, 1, name="ci", role="viewer", actor="ada", reason="x" * 2000)
    assert await list_tokens(database, 1, with_ended=True) == []


@pytest.mark.parametrize(
    "bad",
    [
        {"name": ""},
        {"name": "a b"},
        {"name": "x" * 129},
        {"role": "root"},
        {"queues": ["mail"]},
        {"role": "worker", "queues": []},
        {"role": "worker", "queues": ["not a name"]},
        {"expires_seconds": 0},
        {"expires_seconds": -1},
        {"expires_seconds": 1e12},
        {"expires_seconds": float("nan")},
    ],
    ids=str,
)
async def test_a_bad_token_is_refused(database, bad):
    with pytest.raises(Invalid):
        await create_token(database, 1, **{"name": "ci", **OURS, **bad})
    assert await list_tokens(database, 1, with_ended=True) == []


async def test_a_name_is_free_again_once_its_token_is_revoked(database):
    first = await create_token(database, 1, name="ci", **OURS)
    with pytest.raises(Conflict):
        await create_token(database, 1, name="ci", **OURS)
    await revoke_token(database, 1, "ci", actor="ada")
    second = await create_token(database, 1, name="ci", **OURS)
    assert [row.token_id for row in await list_tokens(database, 1)] == [second.token_id]
    states = {row.token_id: row.state for row in await list_tokens(database, 1, with_ended=True)}
    assert states == {first.token_id: "revoked", second.token_id: "active"}
    with pytest.raises(NotFound):
        await revoke_token(database, 1, first.token_id, actor="ada")


async def test_a_name_that_is_the_id_of_another_ends_neither(database):
    first = await create_token(database, 1, name="ci", **OURS)
    await create_token(database, 1, name=first.token_id, **OURS)
    with pytest.raises(Conflict):
        await revoke_token(database, 1, first.token_id, actor="ada")
    assert len(await list_tokens(database, 1)) == 2


async def test_only_the_very_secret_finds_its_bearer(database, clock):
    made = await create_token(
        database, 1, name="w", role="worker", queues=["b", "a", "a"], expires_seconds=60, actor="x"
    )
    presented = api_token.parse(made.token)
    bearer = await find_bearer(database, presented)
    assert (bearer.tenant_id, bearer.name, bearer.role, bearer.queues) == (1, "w", "worker", {"a", "b"})
    assert await find_bearer(database, api_token.ApiToken(presented.token_id, "x" * 43)) is None
    assert await find_bearer(database, api_token.ApiToken("0" * 12, presented.secret)) is None
    await clock.advance(seconds=61)
    assert await find_bearer(database, presented) is None
    [row] = await list_tokens(database, 1, with_ended=True)
    assert row.state == "expired"


async def test_a_wrong_secret_is_no_use_of_a_token(database):
    made = await create_token(database, 1, name="ci", **OURS)
    await find_bearer(database, api_token.ApiToken(made.token_id, "x" * 43))
    [row] = await list_tokens(database, 1)
    assert row.last_used_at is None


def a_person(subject="7", domain="corp.example", issuer="https://id.example"):
    return Person(issuer=issuer, subject=subject, domain=domain, email=None)


async def test_members_come_and_go_with_their_audit_rows(database):
    added = await add_member(
        database, 1, issuer="https://id.example", subject="7", role="admin", name="Anna", actor="ada", reason="new"
    )
    assert (await find_membership(database, a_person())).role == "admin"
    await remove_member(database, 1, added.member_id, actor="ada", reason="left")
    assert await find_membership(database, a_person()) is None
    removed, first = await list_audit(database, 1)
    assert (first.verb, removed.verb) == ("member.add", "member.remove")
    assert (
        first.after
        == removed.before
        == {
            "issuer": "https://id.example",
            "subject": "7",
            "domain": None,
            "role": "admin",
        }
    )
    with pytest.raises(NotFound):
        await remove_member(database, 1, added.member_id, actor="ada")


@pytest.mark.parametrize(
    ("person", "role"),
    [
        (a_person(), "admin"),
        (a_person("8"), "viewer"),
        (a_person("8", None), None),
        (a_person("8", "corp.example.evil.org"), None),
        (a_person("7", None), "admin"),
        (a_person(issuer="https://other.example"), None),
    ],
)
async def test_an_account_wins_over_its_domain(database, person, role):
    for which, what in (({"domain": "corp.example"}, "viewer"), ({"subject": "7"}, "admin")):
        await add_member(database, 1, issuer="https://id.example", role=what, actor="ada", **which)
    found = await find_membership(database, person)
    assert (None if found is None else found.role) == role


async def test_an_account_named_by_another_tenant_than_its_domains_stays_where_it_is(database, subtests):
    for first in ["domain", "account"]:
        with subtests.test(first=first):
            issuer = f"https://{first}.example"
            acme, beta = [
                (await create_tenant(database, f"{name}-{first}", actor="ada", reason="")).tenant_id
                for name in ("acme", "beta")
            ]
            theirs = (acme, {"domain": "corp.example", "role": "viewer"})
            pulled = (beta, {"subject": "7", "role": "admin"})
            for tenant_id, member in (theirs, pulled) if first == "domain" else (pulled, theirs):
                await add_member(database, tenant_id, issuer=issuer, actor="ada", **member)
            found = await find_membership(database, a_person(issuer=issuer))
            assert (found.tenant_id, found.role) == (acme, "viewer")
            elsewhere = await find_membership(database, a_person(domain="other.example", issuer=issuer))
            assert elsewhere.tenant_id == beta, "a domain nobody has leaves its accounts to whoever names them"


@pytest.mark.parametrize(
    "bad",
    [
        {"subject": None},
        {"domain": "corp.example"},
        {"subject": ""},
        {"subject": "a b"},
        {"subject": "x" * 129},
        {"issuer": "id.example"},
        {"issuer": ""},
        {"role": "owner"},
    ],
    ids=str,
)
async def test_a_bad_member_is_refused(database, bad):
    good = {"issuer": "https://id.example", "subject": "7", "role": "viewer", "actor": "ada"}
    with pytest.raises(Invalid):
        await add_member(database, 1, **{**good, **bad})
    assert await list_members(database, 1) == []


async def test_an_account_is_a_member_once(database):
    member = {"issuer": "google", "subject": "7", "actor": "ada"}
    await add_member(database, 1, role="viewer", **member)
    with pytest.raises(Conflict):
        await add_member(database, 1, role="admin", **member)
    assert [row.role for row in await list_members(database, 1)] == ["viewer"]


async def test_what_changed_nothing_can_be_recorded_alone(database):
    await record(database, 1, Change(verb="access.deny", subject_kind="route", subject_id="GET /x"), actor="eve")
    [row] = await list_audit(database, 1)
    assert (row.verb, row.before, row.after) == ("access.deny", None, None)


async def test_every_installation_has_a_secret_of_its_own(holdfast_databases):
    from holdfast.store.database import Database
    from holdfast.store.migrate import migrate

    secrets = set()
    for _ in range(2):
        url = await holdfast_databases.create()
        fresh = await Database(url, sessions_max=1).open()
        async with fresh.session() as session:
            await session.execute("drop schema holdfast cascade")
        await migrate(fresh)
        secrets.add(await fresh.fetchval("select value from holdfast.secret where purpose = 'capability'"))
        await fresh.close()
        await holdfast_databases.drop(url)
    assert len(secrets) == 2 and all(len(secret) == 32 for secret in secrets)
