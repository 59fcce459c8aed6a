"""What guards an effect and a lease in somebody's own transaction."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import asyncpg
from tests.guards.checks.stage import OTHER_TENANT_ID, Stage, another_tenant, check, forged, handed_over, refuses

from holdfast.core.effects.effect import EffectState
from holdfast.core.tasks.outcome import Completed, Failed, Released
from holdfast.engine.effects import authority
from holdfast.engine.effects.gate import (
    AnswerEffect,
    GateDecision,
    OpenEffect,
    Sender,
    answer_effect,
    list_effects,
    open_effect,
)
from holdfast.errors import Conflict, EffectDenied, LeaseLost, Unavailable
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.store.statements import sql
from holdfast.testing.engine_harness import HeldLease
from holdfast.testing.factories import ACTION, a_failure, a_running_task, a_task


async def opened(stage: Stage, lease: HeldLease, **options: Any) -> GateDecision:
    wanted = OpenEffect(**{"name": "smtp.send", "user_key": "k", "ordinal": 0, "digest": b"same", **options})
    sender = Sender(claimed=lease.claimed, tenant="default")
    return await open_effect(stage.engine.database, stage.engine.catalog, sender, wanted)


async def answered(stage: Stage, lease: HeldLease, gate: GateDecision, state: EffectState = EffectState.DONE) -> None:
    receipt = b"7" if state is EffectState.DONE else None
    await answer_effect(stage.engine.database, lease.claimed, AnswerEffect(key=gate.key, state=state, receipt=receipt))


async def again(stage: Stage, lease: HeldLease) -> HeldLease:
    """The attempt fails and the next one runs."""
    await stage.harness.settle(lease, Failed(a_failure()))
    await stage.clock.advance(seconds=400)
    await stage.harness.reconcile_once()
    return await stage.harness.claim_task(lease.task_id)


async def states(stage: Stage) -> list[str]:
    return [one.state for one in await list_effects(stage.engine.database, DEFAULT_TENANT_ID)]


async def reserved_lease(stage: Stage, lease: HeldLease) -> HeldLease:
    """The lease of a worker that was launched and has not attached: its token is that of a reservation."""
    await stage.harness.settle(lease, Failed(a_failure()))
    await stage.clock.advance(seconds=400)
    await stage.harness.reconcile_once()
    reservation = await stage.harness.reserve(lease.task_id)
    assert reservation is not None
    return forged(lease, attempt=reservation.attempt, lease_token=reservation.lease_token)


RUN_AGAIN = "update holdfast.live set state = 'r', worker_id = $2 where task_id = $1"


@check
async def an_effect_needs_the_current_lease(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    with refuses(LeaseLost):
        await opened(stage, forged(lease, lease_token=uuid.uuid4()))
    with refuses(LeaseLost):
        await opened(stage, forged(lease, attempt=lease.attempt + 1))
    with refuses(LeaseLost):
        await opened(stage, forged(lease, tenant_id=OTHER_TENANT_ID))
    assert await states(stage) == []


@check
async def a_reservation_sends_nothing(stage: Stage) -> None:
    lease = await reserved_lease(stage, await a_running_task(stage.harness))
    with refuses(LeaseLost):
        await opened(stage, lease)


@check
async def an_expired_lease_sends_nothing(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    await stage.clock.advance(seconds=lease.seconds + 1)
    with refuses(LeaseLost):
        await opened(stage, lease)


@check
async def a_gate_that_waited_does_not_open_for_the_lease_before(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    async with handed_over(stage, lease):
        opening = asyncio.ensure_future(opened(stage, lease))
        await stage.waits(opening)
    with refuses(LeaseLost):
        await opening


@check
async def an_action_needs_authority_where_an_effect_is_governed(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    await _rule(stage, "other.action", is_allowed=True)
    with refuses(EffectDenied):
        await opened(stage, lease)
    assert await states(stage) == []
    await _rule(stage, authority.EVERY_ACTION, is_allowed=True)
    assert (await opened(stage, lease)).is_open
    await _rule(stage, ACTION, is_allowed=False)
    with refuses(EffectDenied):
        await opened(stage, lease)
    assert (await opened(stage, lease, name="sms.send")).is_open


@check
async def the_authority_of_another_tenant_is_not_ours(stage: Stage) -> None:
    await another_tenant(stage)
    lease = await a_running_task(stage.harness)
    await _rule(stage, authority.EVERY_ACTION, is_allowed=False, tenant_id=OTHER_TENANT_ID)
    assert (await opened(stage, lease)).is_open
    rulings = await authority.rules(stage.engine.database, DEFAULT_TENANT_ID)
    assert rulings == []


@check
async def a_ruling_replaces_the_one_before(stage: Stage) -> None:
    changed = [await _rule(stage, ACTION, is_allowed=allowed) for allowed in (True, True, False)]
    assert changed == [True, False, True]


async def _rule(stage: Stage, action: str, *, is_allowed: bool, tenant_id: int = DEFAULT_TENANT_ID) -> bool:
    return await authority.rule(
        stage.engine.database, tenant_id, "smtp.send", action, is_allowed=is_allowed, actor="ada", reason=""
    )


@check
async def a_receipt_is_given_again_and_nothing_is_sent(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    await answered(stage, lease, await opened(stage, lease))
    gate = await opened(stage, await again(stage, lease))
    assert (gate.is_open, gate.receipt) == (False, b"7")
    gate = await opened(stage, await a_running_task(stage.harness))
    assert (gate.is_open, gate.receipt) == (False, b"7")


@check
async def other_arguments_do_not_pass_under_a_key(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    await answered(stage, lease, await opened(stage, lease), EffectState.UNKNOWN)
    with refuses(Conflict):
        await opened(stage, lease, digest=b"other")


@check
async def a_refusal_stands_until_an_operator_retries(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    await answered(stage, lease, await opened(stage, lease), EffectState.REFUSED)
    await stage.harness.settle(lease, Failed(a_failure("validation: no such card")))
    await stage.harness.retry(lease.task_id)
    lease = await stage.harness.claim_task(lease.task_id)
    gate = await opened(stage, lease)
    assert gate.is_open
    await answered(stage, lease, gate, EffectState.REFUSED)
    lease = await again(stage, lease)
    assert not (await opened(stage, lease)).is_open


@check
async def a_refusal_stands_until_a_redrive(stage: Stage) -> None:
    lease = await a_running_task(stage.harness, max_retries=1)
    await answered(stage, lease, await opened(stage, lease), EffectState.REFUSED)
    lease = await again(stage, lease)
    assert not (await opened(stage, lease)).is_open
    await stage.harness.settle(lease, Failed(a_failure()))
    await stage.harness.redrive(lease.task_id)
    assert (await opened(stage, await stage.harness.claim_task(lease.task_id))).is_open


@check
async def an_effect_under_way_is_not_sent_by_another(stage: Stage) -> None:
    lease, other = [await a_running_task(stage.harness) for _ in range(2)]
    gate = await opened(stage, lease)
    with refuses(Unavailable):
        await opened(stage, other)
    assert (await opened(stage, lease)).key == gate.key, "the same lease may ask again"
    await stage.harness.settle(lease, Completed(b"1"))
    assert await states(stage) == ["unknown"]
    assert (await opened(stage, other)).key == gate.key
    assert await states(stage) == ["pending"]


@check
async def a_sender_that_began_meanwhile_is_not_overtaken(stage: Stage) -> None:
    """Who waits for the row of an effect knows of no claim since; who sends it now may be one of those."""
    lease, late, sending = [await a_running_task(stage.harness) for _ in range(3)]
    await opened(stage, lease)
    await stage.harness.settle(lease, Completed(b"1"))
    await stage.harness.settle(sending, Released("not now"))
    async with stage.engine.database.transaction() as session:
        await session.fetch("select from holdfast.effect for update")
        asking = asyncio.ensure_future(opened(stage, late))
        await stage.waits(asking)
        sending = await stage.harness.claim_task(sending.task_id)
        await session.fetch(
            "update holdfast.effect set task_id = $1, lease_token = $2, attempt = $3",
            sending.claimed.task_id,
            sending.token,
            sending.attempt,
        )
    with refuses(Unavailable):
        await asking


@check
async def what_is_undone_meanwhile_is_not_answered_with_its_receipt(stage: Stage) -> None:
    lease, late = [await a_running_task(stage.harness) for _ in range(2)]
    undone_by = {"compensation": ACTION, "arguments": b"[[7],{}]"}
    gate = await opened(stage, lease, **undone_by)
    await answered(stage, lease, gate)
    async with stage.engine.database.transaction() as session:
        await session.fetch(sql("record_compensation"), DEFAULT_TENANT_ID, gate.key, 77, "ann", "wrong")
        asking = asyncio.ensure_future(opened(stage, late, **undone_by))
        await stage.waits(asking)
    with refuses(Conflict):
        await asking


@check
async def tasks_of_one_claim_do_not_share_an_effect(stage: Stage) -> None:
    for _ in range(2):
        await stage.harness.enqueue(a_task())
    lease, other = await stage.harness.claim(2)
    assert lease.claimed.lease_token == other.claimed.lease_token
    gate = await opened(stage, lease)
    with refuses(Unavailable):
        await opened(stage, other)
    with refuses(Unavailable):
        await answered(stage, other, gate)
    await answered(stage, lease, gate)
    with refuses(Unavailable):
        await answered(stage, other, gate)


@check
async def a_reserved_attempt_is_not_under_way(stage: Stage) -> None:
    lease, other = [await a_running_task(stage.harness) for _ in range(2)]
    await opened(stage, lease)
    await stage.engine.database.fetch(
        "update holdfast.live set state = 'v', worker_id = null where task_id = $1", lease.claimed.task_id
    )
    assert (await opened(stage, other)).is_open
    await stage.engine.database.fetch(RUN_AGAIN, lease.claimed.task_id, lease.worker_id)


@check
async def an_answer_needs_the_current_lease(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    gate = await opened(stage, lease)
    forgeries = [
        forged(lease, lease_token=uuid.uuid4()),
        forged(lease, attempt=lease.attempt + 1),
        forged(lease, tenant_id=OTHER_TENANT_ID),
    ]
    for forgery in forgeries:
        with refuses(LeaseLost):
            await answered(stage, forgery, gate)
    assert await states(stage) == ["pending"]


@check
async def a_reservation_answers_nothing(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    gate = await opened(stage, lease)
    await stage.engine.database.fetch(
        "update holdfast.live set state = 'v', worker_id = null where task_id = $1", lease.claimed.task_id
    )
    with refuses(LeaseLost):
        await answered(stage, lease, gate)
    await stage.engine.database.fetch(RUN_AGAIN, lease.claimed.task_id, lease.worker_id)


@check
async def an_answer_that_waited_is_not_kept_for_the_lease_before(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    gate = await opened(stage, lease)
    async with handed_over(stage, lease):
        answering = asyncio.ensure_future(answered(stage, lease, gate))
        await stage.waits(answering)
    with refuses(LeaseLost):
        await answering
    assert await states(stage) == ["unknown"]


@check
async def an_answer_belongs_to_the_lease_that_opened(stage: Stage) -> None:
    first = await a_running_task(stage.harness)
    gate = await opened(stage, first)
    second = await again(stage, first)
    with refuses(Conflict):
        await answered(stage, second, gate)
    assert await states(stage) == ["unknown"]
    await answered(stage, second, await opened(stage, second))
    third = await again(stage, second)
    with refuses(Conflict):
        await answered(stage, third, gate)


@check
async def an_answer_is_final_and_may_be_repeated(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    gate = await opened(stage, lease)
    await answered(stage, lease, gate)
    await answered(stage, lease, gate)
    with refuses(Conflict):
        await answered(stage, lease, gate, EffectState.REFUSED)
    assert await states(stage) == ["done"]


@check
async def a_lease_asserted_in_a_transaction_stays_until_it_ends(stage: Stage) -> None:
    lease = await a_running_task(stage.harness)
    with refuses(asyncpg.PostgresError):
        await stage.engine.database.fetch(sql("assert_lease"), lease.task_id, uuid.uuid4())
    async with stage.engine.database.transaction() as own:
        await own.fetch(sql("assert_lease"), lease.task_id, lease.token)
        await stage.clock.advance(seconds=lease.seconds + 1)
        assert await stage.harness.reap_once() == 0
    assert await stage.harness.reap_once() == 1
