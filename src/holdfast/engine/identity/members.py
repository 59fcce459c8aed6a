"""Members: which accounts and domains of an issuer may sign in, to which tenant and in which role. Changes are
audited."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from holdfast.core.identity.access import Role, valid_role
from holdfast.core.identity.id_token import GOOGLE, ISSUER_CHARACTERS_MAX, SUBJECT_CHARACTERS_MAX, Person
from holdfast.core.values import bounds
from holdfast.engine.audit import Change, audit
from holdfast.errors import Conflict, Invalid, NotFound
from holdfast.store.database import Database
from holdfast.store.sql.identity import identity as identity_sql

LIST_MAX = 1_000
SHORT_ISSUERS = {"google": GOOGLE, "accounts.google.com": GOOGLE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One account, or one whole domain, that may sign in."""

    member_id: str
    issuer: str
    subject: str | None
    domain: str | None
    role: str
    name: str
    added_by: str
    added_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The tenant and role of a person."""

    tenant_id: int
    role: Role


async def add_member(
    database: Database,
    tenant_id: int,
    *,
    issuer: str,
    subject: str | None = None,
    domain: str | None = None,
    role: str,
    name: str = "",
    actor: str,
    reason: str = "",
) -> Member:
    """Add one account (`subject`) or a whole hosted domain. `google` is short for Google's issuer."""
    kind, issuer = valid_role(role), SHORT_ISSUERS.get(issuer, issuer)
    _require(issuer, subject, domain)
    if name:
        bounds.valid_actor(name)
    async with database.transaction() as session:
        row = await identity_sql.add_member(session, tenant_id, issuer, subject, domain, kind, name, actor)
        if row is None:
            # The error must not reveal that it is a member of another tenant.
            is_own = await identity_sql.is_member(session, tenant_id, issuer, subject, domain)
            raise Conflict(
                f"{subject or domain} of {issuer} {'is a member already' if is_own else 'cannot be added'}.",
                code="member_exists" if is_own else "member_not_added",
                advice="See `holdfast member list`." if is_own else "Ask an administrator of the installation.",
            )
        member_id = row.member_id
        member = {"issuer": issuer, "subject": subject, "domain": domain, "role": kind}
        change = Change(verb="member.add", subject_kind="member", subject_id=str(member_id), after=member)
        await audit(session, tenant_id, [change], actor=actor, reason=reason)
    return Member(
        member_id=str(member_id),
        issuer=issuer,
        subject=subject,
        domain=domain,
        role=kind,
        name=name,
        added_by=actor,
        added_at=row.added_at,
    )


def _require(issuer: str, subject: str | None, domain: str | None) -> None:
    if not issuer.startswith(("https://", "http://")) or not _fits(issuer, ISSUER_CHARACTERS_MAX):
        raise Invalid(
            f"The issuer {issuer[:80]!r} is not an address.",
            code="invalid_issuer",
            advice="Give it as its tokens say it, as https://login.example.com, or `google`.",
        )
    if (subject is None) == (domain is None):
        raise Invalid("A member is one account or one domain.", code="invalid_member", advice="Give one of the two.")
    if not _fits(subject or domain or "", SUBJECT_CHARACTERS_MAX):
        raise Invalid("A subject or domain is 1 to 128 printable characters.", code="invalid_member")


def _fits(text: str, characters_max: int) -> bool:
    return 0 < len(text) <= characters_max and text.isprintable() and " " not in text


async def remove_member(database: Database, tenant_id: int, member_id: str, *, actor: str, reason: str = "") -> None:
    """Remove a member; servers apply it within `auth.token_cache_seconds`."""
    number = bounds.member_number(member_id)
    async with database.transaction() as session:
        row = await identity_sql.remove_member(session, tenant_id, number)
        if row is None:
            raise NotFound(f"There is no member {member_id}.", code="member_not_found")
        member = {"issuer": row.issuer, "subject": row.subject, "domain": row.domain, "role": row.role}
        change = Change(verb="member.remove", subject_kind="member", subject_id=str(number), before=member)
        await audit(session, tenant_id, [change], actor=actor, reason=reason)


async def list_members(database: Database, tenant_id: int, *, after: int = 0, limit: int = LIST_MAX) -> list[Member]:
    """Return a page of the members of a tenant, those after an id."""
    return [
        Member(**{**row._asdict(), "member_id": str(row.member_id)})
        for row in await identity_sql.list_members(database, tenant_id, limit, after)
    ]


async def find_membership(database: Database, person: Person) -> Membership | None:
    """Return the tenant and role of a person: by account, else by domain.

    If the domain belongs to a tenant, an account entry counts only in that tenant.
    """
    row = await identity_sql.find_member(database, person.issuer, person.subject, person.domain)
    return None if row is None else Membership(tenant_id=row.tenant_id, role=Role(row.role))
