"""What guards webhooks and probes: one holder each, its token on every write, and only one's own tenant."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
from tests.guards.checks.stage import OTHER_TENANT_ID, Stage, another_tenant, check, refuses

from holdfast.engine.webhooks.commands import (
    add_webhook,
    list_webhooks,
    pause_webhook,
    remove_webhook,
    resume_webhook,
    rotate_webhook,
)
from holdfast.errors import Conflict, NotFound
from holdfast.store.statements import sql

TENANT_ID = 1
URL = "http://93.184.215.14/hook"
LEASE = (10, 60.0, 10, [], [], 10, True)


async def _hook(stage: Stage, tenant_id: int = TENANT_ID, name: str = "hook") -> str:
    return (await add_webhook(stage.engine, tenant_id, name, URL, actor="anna")).secret


async def _row(stage: Stage, tenant_id: int = TENANT_ID) -> Any:
    rows = await stage.engine.database.fetch("select * from holdfast.webhook where tenant_id = $1", tenant_id)
    return rows[0]


async def _lease(stage: Stage) -> list[Any]:
    return await stage.engine.database.fetch(sql("lease_webhooks"), *LEASE)


@check
async def a_webhook_has_one_holder(stage: Stage) -> None:
    await _hook(stage)
    assert len(await _lease(stage)) == 1
    assert await _lease(stage) == []
    await stage.clock.advance(seconds=61)
    assert len(await _lease(stage)) == 1


@check
async def a_webhook_is_not_leased_before_its_time(stage: Stage) -> None:
    await _hook(stage)
    (held,) = await _lease(stage)
    await stage.engine.database.fetch(sql("release_webhook"), held["webhook_id"], held["lease_token"], 30.0, "9:9")
    assert await _lease(stage) == []
    await stage.clock.advance(seconds=31)
    assert len(await _lease(stage)) == 1


@check
async def who_cannot_ask_urls_leases_reporters_alone(stage: Stage) -> None:
    await _hook(stage)
    await stage.engine.database.fetch(
        "insert into holdfast.webhook (tenant_id, name, url, secret, cursor, created_by) "
        "values (1, 'mine', 'reporter:shop:reporter', '', '0:0', 'anna')"
    )
    held = await stage.engine.database.fetch(sql("lease_webhooks"), *LEASE[:-1], False)
    assert [row["name"] for row in held] == ["mine"]
    assert [row["name"] for row in await _lease(stage)] == ["hook"]


@check
async def a_paused_webhook_is_not_leased(stage: Stage) -> None:
    await _hook(stage)
    await pause_webhook(stage.engine, TENANT_ID, "hook", actor="anna")
    assert await _lease(stage) == []


@check
async def whoever_leases_webhooks_waits_for_nobody(stage: Stage) -> None:
    await _hook(stage)
    async with stage.engine.database.transaction() as held, stage.impatient() as session:
        await held.fetch(sql("lock_webhook"), TENANT_ID, "hook")
        assert await session.fetch(sql("lease_webhooks"), *LEASE) == []


async def _writes(stage: Stage, webhook_id: int, token: Any) -> list[list[Any]]:
    fetch = stage.engine.database.fetch
    return [
        await fetch(sql("advance_webhook"), webhook_id, token, "9:9", 1, 60.0),
        await fetch(sql("fail_webhook"), webhook_id, token, "it answered 500", 1.0, None, "anna"),
    ]


@check
async def only_the_holder_of_a_webhook_moves_it(stage: Stage) -> None:
    await _hook(stage)
    (first,) = await _lease(stage)
    await stage.clock.advance(seconds=61)
    (second,) = await _lease(stage)
    before = await _row(stage)
    assert await _writes(stage, first["webhook_id"], first["lease_token"]) == [[], []]
    released = (first["webhook_id"], first["lease_token"], 0.0, "9:9")
    assert not await stage.engine.database.fetch(sql("release_webhook"), *released)
    refused = (first["webhook_id"], first["lease_token"], "not from here", 0.0)
    assert not await stage.engine.database.fetch(sql("refuse_webhook"), *refused)
    assert await _row(stage) == before
    assert await _writes(stage, second["webhook_id"], second["lease_token"]) != [[], []]


@check
async def a_holder_whose_time_is_over_moves_nothing(stage: Stage) -> None:
    await _hook(stage)
    (held,) = await _lease(stage)
    await stage.clock.advance(seconds=61)
    assert await _writes(stage, held["webhook_id"], held["lease_token"]) == [[], []]


@check
async def webhooks_are_their_tenants(stage: Stage) -> None:
    await another_tenant(stage)
    await _hook(stage)
    engine, other = stage.engine, OTHER_TENANT_ID
    for verb in (remove_webhook, rotate_webhook, pause_webhook, resume_webhook):
        with refuses(NotFound):
            await verb(engine, other, "hook", actor="eve")
    await _hook(stage, other)
    await pause_webhook(engine, other, "hook", actor="eve")
    assert (await _row(stage))["paused_at"] is None
    await pause_webhook(engine, TENANT_ID, "hook", actor="anna")
    await resume_webhook(engine, other, "hook", actor="eve")
    assert (await _row(stage))["paused_at"] is not None
    secret = (await _row(stage))["secret"]
    await rotate_webhook(engine, other, "hook", actor="eve")
    assert (await _row(stage))["secret"] == secret
    await remove_webhook(engine, other, "hook", actor="eve")
    assert [view.name for view in await list_webhooks(engine.database, TENANT_ID)] == ["hook"]


@check
async def a_webhooks_name_is_taken_once(stage: Stage) -> None:
    await _hook(stage)
    with refuses(Conflict):
        await _hook(stage)


@check
async def a_second_pause_keeps_the_first_reason(stage: Stage) -> None:
    await _hook(stage)
    await pause_webhook(stage.engine, TENANT_ID, "hook", actor="anna", reason="first")
    assert not await pause_webhook(stage.engine, TENANT_ID, "hook", actor="bob", reason="second")
    assert (await _row(stage))["paused_reason"] == "first"


@check
async def only_a_paused_webhook_is_resumed(stage: Stage) -> None:
    await _hook(stage)
    before = await _row(stage)
    assert not await resume_webhook(stage.engine, TENANT_ID, "hook", from_now=True, actor="anna")
    assert await _row(stage) == before


@check
async def what_a_change_of_a_webhook_saw_stays_so(stage: Stage) -> None:
    await _hook(stage)
    async with stage.engine.database.transaction() as held:
        await held.fetch(sql("lock_webhook"), TENANT_ID, "hook")
        pausing = asyncio.ensure_future(pause_webhook(stage.engine, TENANT_ID, "hook", actor="bob"))
        await stage.waits(pausing)
        assert not pausing.done()
    assert await pausing


async def _offering(stage: Stage) -> int:
    number = await stage.harness.worker_id("offering")
    await stage.engine.database.fetch(
        """update holdfast.worker set labels = '{"probe_url": "http://93.184.215.14/"}' where worker_id = $1""", number
    )
    return int(number)


async def _take(stage: Stage) -> list[Any]:
    return await stage.engine.database.fetch(sql("take_probes"), 5.0, 10)


@check
async def a_worker_is_asked_once_a_turn(stage: Stage) -> None:
    await _offering(stage)
    assert len(await _take(stage)) == 1
    assert await _take(stage) == []
    await stage.clock.advance(seconds=6)
    assert len(await _take(stage)) == 1


@check
async def copies_that_see_the_same_turn_do_not_both_take_it(stage: Stage) -> None:
    await _offering(stage)
    await _take(stage)
    await stage.clock.advance(seconds=6)
    async with stage.engine.database.transaction() as first:
        assert len(await first.fetch(sql("take_probes"), 5.0, 10)) == 1
        second = asyncio.ensure_future(_take(stage))
        await stage.waits(second)
    assert await second == []


@check
async def a_worker_that_left_is_not_asked(stage: Stage) -> None:
    await _offering(stage)
    await stage.harness.retire("offering")
    assert await _take(stage) == []


@check
async def a_late_answer_of_a_worker_counts_nothing(stage: Stage) -> None:
    await _offering(stage)
    (first,) = await _take(stage)
    await stage.clock.advance(seconds=6)
    await _take(stage)
    late = await stage.engine.database.fetch(sql("record_probe"), first["worker_id"], first["due_at"], True, "", 3)
    assert late == []


@check
async def the_schema_refuses_a_lease_without_its_end(stage: Stage) -> None:
    await _hook(stage)
    with refuses(asyncpg.CheckViolationError):
        await stage.engine.database.fetch("update holdfast.webhook set lease_token = gen_random_uuid()")


@check
async def the_schema_refuses_a_holder_of_a_paused_webhook(stage: Stage) -> None:
    await _hook(stage)
    await _lease(stage)
    with refuses(asyncpg.CheckViolationError):
        await stage.engine.database.fetch("update holdfast.webhook set paused_at = now(), paused_by = 'anna'")


@check
async def the_schema_refuses_an_old_secret_for_ever(stage: Stage) -> None:
    await _hook(stage)
    with refuses(asyncpg.CheckViolationError):
        await stage.engine.database.fetch("update holdfast.webhook set old_secret = secret")
