"""API tokens: create, list and revoke them, and find the owner of a presented one. Creation and revocation are
audited."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.core.identity import api_token
from holdfast.core.identity.access import Role, valid_role
from holdfast.core.identity.api_token import ApiToken
from holdfast.core.values import bounds
from holdfast.engine.audit import Change, audit
from holdfast.errors import Conflict, Invalid, NotFound
from holdfast.store.database import Database
from holdfast.store.sql.identity import identity as identity_sql

LIST_MAX = 1_000
QUEUES_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedToken:
    """A new token. `token` is returned only here and cannot be read again."""

    token: str
    token_id: str
    name: str
    role: Role
    queues: list[str] | None
    created_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenView:
    """A token without its secret, for lists."""

    token_id: str
    name: str
    role: str
    queues: list[str] | None
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None
    is_expired: bool

    @property
    def state(self) -> str:
        """Return the state in one word: active, expired or revoked."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.is_expired else "active"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearer:
    """The tenant, name, role and queues of a token."""

    tenant_id: int
    name: str
    role: Role
    queues: frozenset[str] | None


async def create_token(
    database: Database,
    tenant_id: int,
    *,
    name: str,
    role: str,
    queues: Sequence[str] | None = None,
    expires_seconds: float | None = None,
    actor: str,
    reason: str = "",
) -> CreatedToken:
    """Create a token. A worker may serve only `queues` with it."""
    kind, served = valid_role(role), _queues(role, queues)
    bounds.valid_token_name(name)
    if expires_seconds is not None and not 0 < expires_seconds <= bounds.DELAY_SECONDS_MAX:
        raise Invalid("A token lives more than 0 seconds and at most 10 years.", code="invalid_expiry")
    made = api_token.mint(secrets.token_bytes(api_token.ID_BYTES), secrets.token_bytes(api_token.SECRET_BYTES))
    async with database.transaction() as session:
        row = await identity_sql.create_token(
            session, made.token_id, tenant_id, name, kind, served, made.digest, actor, expires_seconds
        )
        if row is None:
            raise Conflict(
                f"There is a token called {name} already.",
                code="token_name_taken",
                advice=f"Choose another name, or revoke it first (`holdfast token revoke {name}`).",
            )
        told = {"name": name, "role": kind, "queues": served, "expires_at": row.expires_at}
        change = Change(verb="token.create", subject_kind="token", subject_id=made.token_id, after=told)
        await audit(session, tenant_id, [change], actor=actor, reason=reason)
    return CreatedToken(
        token=made.text,
        token_id=made.token_id,
        name=name,
        role=kind,
        queues=served,
        created_at=row.created_at,
        expires_at=row.expires_at,
    )


def _queues(role: str, queues: Sequence[str] | None) -> list[str] | None:
    if queues is None:
        return None
    if role != Role.WORKER:
        raise Invalid("Only a worker's token can be limited to queues.", code="invalid_queues")
    if not 0 < len(queues) <= QUEUES_MAX:
        raise Invalid(f"A token is limited to 1 to {QUEUES_MAX} queues, or to none.", code="invalid_queues")
    return sorted({bounds.valid_queue(queue) for queue in queues})


async def revoke_token(database: Database, tenant_id: int, which: str, *, actor: str, reason: str = "") -> str:
    """Revoke a token by its id or name; return its id. Servers apply it within `auth.token_cache_seconds`."""
    async with database.transaction() as session:
        rows = await identity_sql.revoke_token(session, tenant_id, which, actor)
        if not rows:
            raise NotFound(
                f"No token in use has the id or name {which[:80]!r}.",
                code="token_not_found",
                advice="See `holdfast token list --all`.",
            )
        if len(rows) > 1:
            raise Conflict(f"{which} is the id of one token and the name of another.", code="token_ambiguous")
        [row] = rows
        told = {"name": row.name, "role": row.role}
        change = Change(
            verb="token.revoke",
            subject_kind="token",
            subject_id=row.token_id,
            before={**told, "state": "active"},
            after={**told, "state": "revoked"},
        )
        await audit(session, tenant_id, [change], actor=actor, reason=reason)
    return str(row.token_id)


async def list_tokens(
    database: Database, tenant_id: int, *, with_ended: bool = False, after: str | None = None, limit: int = LIST_MAX
) -> list[TokenView]:
    """Return a page of the usable tokens, newest first, after an id; optionally with those that ended."""
    return [
        TokenView(**row._asdict())
        for row in await identity_sql.list_tokens(database, tenant_id, with_ended, limit, after)
    ]


async def find_bearer(database: Database, presented: ApiToken) -> Bearer | None:
    """Return the owner of a token if it exists and is usable; records its use at most once a minute."""
    row = await identity_sql.read_token(database, presented.token_id)
    # Compare even if there is no such token, so that the response time does not reveal which ids exist.
    is_right = hmac.compare_digest(presented.digest, bytes(32) if row is None else row.digest)
    if row is None or not is_right:
        return None
    if row.is_rested:
        await identity_sql.touch_token(database, presented.token_id)
    queues = None if row.queues is None else frozenset(row.queues)
    return Bearer(tenant_id=row.tenant_id, name=row.name, role=Role(row.role), queues=queues)


async def is_in_use(database: Database, token_id: str) -> bool:
    """Return whether the token with this id is usable now."""
    return await identity_sql.read_token(database, token_id) is not None


async def has_token(database: Database) -> bool:
    """Return whether any usable token exists."""
    return bool(await identity_sql.has_token(database))
