"""Operations on API tokens, and on the accounts and domains that may sign in. For administrators."""

from __future__ import annotations

import msgspec

from holdfast.core.identity.access import Access
from holdfast.engine.identity import members, tokens
from holdfast.engine.identity.members import Member
from holdfast.engine.identity.tokens import CreatedToken, TokenView
from holdfast.engine.queries.pages import valid_limit
from holdfast.errors import Forbidden, Invalid
from holdfast.operations.context import OperationContext
from holdfast.operations.operation import Request, operation
from holdfast.operations.paging import next_of
from holdfast.operations.shared_types import ListNames


class CreateToken(Request, frozen=True, kw_only=True):
    """A name, a role, for a worker the only queues it may serve, and the lifetime."""

    name: str
    role: str
    queues: list[str] | None = None
    expires_seconds: float | None = None
    reason: str = ""


class ListTokens(ListNames, frozen=True, kw_only=True):
    """`with_ended` also lists tokens that expired or were revoked. `after` is the `next` of the previous page."""

    with_ended: bool = False


class TokenPage(msgspec.Struct, frozen=True, kw_only=True):
    tokens: list[TokenView]
    next: str | None


class RevokeToken(Request, frozen=True, kw_only=True):
    """The id or the name of a valid token."""

    token_id: str
    reason: str = ""


class TokenRevoked(msgspec.Struct, frozen=True, kw_only=True):
    token_id: str
    state: str


class AddMember(Request, frozen=True, kw_only=True):
    """One account by its `subject`, or a whole hosted `domain`, of an issuer; `google` is one."""

    issuer: str
    role: str
    subject: str | None = None
    domain: str | None = None
    name: str = ""
    reason: str = ""


class MemberPage(msgspec.Struct, frozen=True, kw_only=True):
    members: list[Member]
    next: str | None


class RemoveMember(Request, frozen=True, kw_only=True):
    """The id of the member, and the reason."""

    member_id: str
    reason: str = ""


class MemberRemoved(msgspec.Struct, frozen=True, kw_only=True):
    member_id: str
    state: str


@operation("token.create", "POST /api/v1/tokens", Access.ADMIN, status=201)
async def create_token(context: OperationContext, request: CreateToken) -> CreatedToken:
    """Creates an API token; the response is the only one that contains its secret."""
    return await tokens.create_token(
        context.database,
        context.tenant_id,
        name=request.name,
        role=request.role,
        queues=request.queues,
        expires_seconds=request.expires_seconds,
        actor=context.actor,
        reason=request.reason,
    )


@operation("token.list", "GET /api/v1/tokens", Access.ADMIN)
async def list_tokens(context: OperationContext, request: ListTokens) -> TokenPage:
    """Lists API tokens, newest first, without their secrets."""
    rows = await tokens.list_tokens(
        context.database,
        context.tenant_id,
        with_ended=request.with_ended,
        after=request.after,
        limit=valid_limit(request.limit),
    )
    return TokenPage(tokens=rows, next=next_of(rows, request.limit, lambda row: row.token_id))


@operation("token.revoke", "POST /api/v1/tokens/{token_id}/revoke", Access.ADMIN)
async def revoke_token(context: OperationContext, request: RevokeToken) -> TokenRevoked:
    """Revokes an API token for good."""
    ended = await tokens.revoke_token(
        context.database, context.tenant_id, request.token_id, actor=context.actor, reason=request.reason
    )
    return TokenRevoked(token_id=ended, state="revoked")


@operation("member.add", "POST /api/v1/members", Access.ADMIN, status=201)
async def add_member(context: OperationContext, request: AddMember) -> Member:
    """Allows an account, or every account of a domain, to sign in."""
    if request.domain is not None and not context.is_of_installation:
        raise Forbidden(
            "Only an administrator of the installation assigns a domain to a tenant.",
            code="domain_not_yours",
            advice="Add single accounts by their subject, or ask an administrator of the default tenant.",
        )
    return await members.add_member(
        context.database,
        context.tenant_id,
        issuer=request.issuer,
        subject=request.subject,
        domain=request.domain,
        role=request.role,
        name=request.name,
        actor=context.actor,
        reason=request.reason,
    )


@operation("member.list", "GET /api/v1/members", Access.ADMIN)
async def list_members(context: OperationContext, request: ListNames) -> MemberPage:
    """Lists the accounts and domains that may sign in."""
    rows = await members.list_members(
        context.database, context.tenant_id, after=_place(request.after), limit=valid_limit(request.limit)
    )
    return MemberPage(members=rows, next=next_of(rows, request.limit, lambda row: row.member_id))


def _place(after: str | None) -> int:
    if after is None:
        return 0
    if not (after.isascii() and after.isdigit() and len(after) <= 9):
        raise Invalid(f"{after[:80]!r} is no `next` of a page.", code="invalid_cursor", advice="Begin at the start.")
    return int(after)


@operation("member.remove", "POST /api/v1/members/{member_id}/remove", Access.ADMIN)
async def remove_member(context: OperationContext, request: RemoveMember) -> MemberRemoved:
    """Removes the permission of an account or a domain to sign in."""
    await members.remove_member(
        context.database, context.tenant_id, request.member_id, actor=context.actor, reason=request.reason
    )
    return MemberRemoved(member_id=request.member_id, state="removed")


OPERATIONS = (create_token, list_tokens, revoke_token, add_member, list_members, remove_member)
