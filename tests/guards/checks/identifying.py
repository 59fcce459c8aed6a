"""Tokens and members belong to their tenant, come once and end once."""

from __future__ import annotations

import asyncpg
from tests.guards.checks.stage import OTHER_TENANT_ID, Stage, another_tenant, check, refuses

from holdfast.engine.identity.members import Member, add_member, list_members, remove_member
from holdfast.engine.identity.tokens import CreatedToken, create_token, list_tokens, revoke_token
from holdfast.errors import Conflict, NotFound
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.store.statements import sql


async def _a_token(stage: Stage, name: str = "ci") -> CreatedToken:
    return await create_token(stage.engine.database, DEFAULT_TENANT_ID, name=name, role="viewer", actor="ada")


async def _a_member(stage: Stage, tenant_id: int = DEFAULT_TENANT_ID) -> Member:
    return await add_member(
        stage.engine.database, tenant_id, issuer="https://id.example", subject="7", role="viewer", actor="ada"
    )


@check
async def a_name_stands_for_one_token(stage: Stage) -> None:
    await _a_token(stage)
    with refuses(Conflict):
        await _a_token(stage)


@check
async def another_tenants_token_is_left_alone(stage: Stage) -> None:
    await another_tenant(stage)
    await _a_token(stage)
    with refuses(NotFound):
        await revoke_token(stage.engine.database, OTHER_TENANT_ID, "ci", actor="eve")
    assert len(await list_tokens(stage.engine.database, DEFAULT_TENANT_ID)) == 1


@check
async def a_token_is_revoked_once(stage: Stage) -> None:
    made = await _a_token(stage)
    await revoke_token(stage.engine.database, DEFAULT_TENANT_ID, made.token_id, actor="ada")
    with refuses(NotFound):
        await revoke_token(stage.engine.database, DEFAULT_TENANT_ID, made.token_id, actor="eve")
    [row] = await list_tokens(stage.engine.database, DEFAULT_TENANT_ID, with_ended=True)
    assert row.revoked_by == "ada"


@check
async def a_use_is_written_once_a_minute(stage: Stage) -> None:
    made = await _a_token(stage)
    written = []
    for seconds in (0, 30, 31):
        await stage.clock.advance(seconds=seconds)
        written.append(bool(await stage.engine.database.fetch(sql("touch_token"), made.token_id)))
    assert written == [True, False, True]


@check
async def an_account_is_a_member_of_one_tenant(stage: Stage) -> None:
    await another_tenant(stage)
    await _a_member(stage)
    for tenant_id in (DEFAULT_TENANT_ID, OTHER_TENANT_ID):
        with refuses(Conflict):
            await _a_member(stage, tenant_id)


@check
async def another_tenants_member_stays(stage: Stage) -> None:
    await another_tenant(stage)
    member = await _a_member(stage)
    with refuses(NotFound):
        await remove_member(stage.engine.database, OTHER_TENANT_ID, member.member_id, actor="eve")
    assert await list_members(stage.engine.database, DEFAULT_TENANT_ID) == [member]


@check
async def the_schema_refuses_queues_of_somebody_who_is_no_worker(stage: Stage) -> None:
    await _a_token(stage)
    with refuses(asyncpg.CheckViolationError):
        await stage.engine.database.fetch("update holdfast.token set queues = '{mail}'")


@check
async def the_schema_refuses_a_revocation_by_nobody(stage: Stage) -> None:
    await _a_token(stage)
    with refuses(asyncpg.CheckViolationError):
        await stage.engine.database.fetch("update holdfast.token set revoked_at = holdfast.instant()")


@check
async def the_schema_refuses_a_member_who_is_everybody(stage: Stage) -> None:
    await _a_member(stage)
    with refuses(asyncpg.CheckViolationError):
        await stage.engine.database.fetch("update holdfast.member set subject = null")
