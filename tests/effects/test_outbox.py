"""The outbox by hand: who sends, what is known afterwards, and how long."""

from __future__ import annotations

import asyncio

import asyncpg
import msgspec
import pytest
from tests.core.flows import a_map
from tests.flow.steps import finish, step

import holdfast as hf
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.effects.compensate import Compensation, compensate
from holdfast.engine.effects.gate import list_effects
from holdfast.engine.effects.steps import StoredStep, keep_step
from holdfast.engine.idempotency import IdempotentRequest, ReplayedResponse
from holdfast.engine.maintenance.retention import begin_today, drop_old
from holdfast.engine.queries.explain_run import why
from holdfast.engine.queries.task_detail import show_task
from holdfast.errors import Conflict, LeaseLost, NotFound, Unavailable
from holdfast.testing import factories as a
from holdfast.testing.crash import FaultMode, StatementFault


async def states(engine):
    return [one.state for one in await list_effects(engine.database, 1)]


async def test_many_tasks_at_once_under_one_key_send_it_once(harness, outbox):
    leases = [await a.a_running_task(harness) for _ in range(8)]
    gates = await asyncio.gather(*(outbox.open(lease) for lease in leases), return_exceptions=True)
    assert sorted(type(one).__name__ for one in gates) == ["GateDecision"] + 7 * ["Unavailable"]


async def test_an_effect_is_pending_while_its_attempt_runs_and_unknown_afterwards(harness, outbox, engine, clock):
    lease = await a.a_running_task(harness)
    await outbox.open(lease)
    assert await states(engine) == ["pending"]
    await clock.advance(seconds=lease.seconds + 1)
    await harness.reap_once()
    assert await states(engine) == ["unknown"]


async def test_the_gate_may_be_asked_again_by_its_lease_without_counting_twice(harness, outbox, engine):
    lease = await a.a_running_task(harness)
    for _ in range(2):
        await outbox.open(lease)
    assert [one.sends for one in await list_effects(engine.database, 1)] == [1]


@pytest.mark.parametrize("mode", [FaultMode.CUT_BEFORE, FaultMode.CUT_AFTER])
async def test_a_broken_connection_is_made_good_by_asking_again(mode, harness, outbox, engine, monkeypatch):
    monkeypatch.setattr("holdfast.engine.effects.gate.PAUSES_SECONDS", (0.0, 0.0))
    lease = await a.a_running_task(harness)
    await engine.catalog.installation()
    await engine.catalog.epoch_tag(int(lease.task_id))
    opening = engine.database.tap = StatementFault(mode, 1)
    gate = await outbox.open(lease)
    answering = engine.database.tap = StatementFault(mode, 1)
    await outbox.answer(lease, gate)
    engine.database.tap = None
    assert opening.fired and answering.fired
    assert [(one.state, one.sends) for one in await list_effects(engine.database, 1)] == [("done", 1)]


async def test_a_late_receipt_is_refused_and_the_next_attempt_knows_the_effect_as_unknown(harness, outbox, clock):
    first = await a.a_running_task(harness)
    gate = await outbox.open(first)
    await clock.advance(seconds=first.seconds + 1)
    await harness.reap_once()
    second = await harness.claim_task(first.task_id)
    with pytest.raises(LeaseLost):
        await outbox.answer(first, gate)
    assert await outbox.open(second) == gate


async def test_effects_without_a_key_are_told_apart_by_task_name_and_order(harness, outbox):
    leases = [await a.a_running_task(harness) for _ in range(2)]
    gates = [
        await outbox.open(lease, name, user_key=None, ordinal=n) for lease in leases for name in "ab" for n in (0, 1)
    ]
    assert len({gate.key for gate in gates}) == 8


async def test_show_and_why_name_what_is_unknown(harness, outbox, engine):
    lease = await a.a_running_task(harness, max_retries=0)
    await outbox.open(lease, user_key="receipt:7")
    await harness.settle(lease, Failed(a.a_failure()))
    view = await show_task(engine.database, engine.catalog, 1, int(lease.task_id))
    assert [(one.effect, one.state) for one in view.effects] == [("smtp.send", "unknown")]
    explanation = await why(engine.database, engine.catalog, 1, int(lease.task_id))
    assert "effect smtp.send (receipt:7) is unknown: it was started and has no receipt" in explanation.evidence
    assert explanation.moves[-1] == f"holdfast effect list --task {lease.task_id}"


async def test_the_view_shows_effects_to_everybody(harness, outbox, engine):
    lease = await a.a_running_task(harness)
    await outbox.answer(lease, await outbox.open(lease))
    row = await engine.database.fetchrow("select * from holdfast.effects")
    assert (row["task_id"], row["tenant"], row["effect"], row["state"]) == (
        lease.task_id,
        "default",
        "smtp.send",
        "done",
    )


async def test_effects_and_steps_live_as_long_as_their_task(harness, outbox, engine, clock):
    leases = [await a.a_running_task(harness) for _ in range(2)]
    for lease in leases:
        await outbox.answer(lease, await outbox.open(lease, user_key=lease.task_id))
        await keep_step(engine.database, lease.claimed, StoredStep("page", b"", b"1"))
    await harness.settle(leases[0], Completed(b"1"))
    for _ in range(2):
        await clock.advance("1d")
        await begin_today(engine.database)
    assert await drop_old(engine.database, days=1) == 0, "one of the tasks still runs"
    await harness.settle(leases[1], Completed(b"1"))
    for _ in range(2):  # what was kept longer than its block is kept for the promised time after its end
        await clock.advance("1d")
        await begin_today(engine.database)
    assert await drop_old(engine.database, days=1) > 0
    assert await states(engine) == []
    assert await engine.database.fetchval("select count(*) from holdfast.step") == 0


async def test_a_lease_asserted_in_the_users_transaction(harness, engine, clock):
    lease = await a.a_running_task(harness)
    ctx = context_of(lease)
    connection = await asyncpg.connect(engine.database.url)
    try:
        async with connection.transaction():
            await hf.assert_lease(connection, ctx)
            await harness.heartbeat(lease)  # a beat does not wait for the user's transaction
        await harness.settle(lease, Failed(a.a_failure()))
        with pytest.raises(LeaseLost):
            async with connection.transaction():
                await hf.assert_lease(connection, ctx)
    finally:
        await connection.close()


async def test_other_errors_of_the_users_connection_are_its_own(harness, engine):
    ctx = context_of(await a.a_running_task(harness))
    connection = await asyncpg.connect(engine.database.url)
    try:
        with pytest.raises(asyncpg.InFailedSQLTransactionError):
            async with connection.transaction():
                with pytest.raises(asyncpg.UndefinedTableError):
                    await connection.execute("select * from nowhere")
                await hf.assert_lease(connection, ctx)
    finally:
        await connection.close()


def context_of(lease):
    return hf.Context(
        task_id=lease.task_id,
        attempt=lease.attempt,
        tenant="default",
        action="shop.charge",
        queue="default",
        lease_token=str(lease.token),
    )


@pytest.fixture
def undo(engine):
    async def call(key, *, reason="wrong customer"):
        return await compensate(engine.database, engine.catalog, 1, key, actor="ada", reason=reason)

    return call


async def a_charge(harness, outbox, *, answer="done", compensation=a.ACTION):
    lease = await a.a_running_task(harness)
    arguments = None if compensation is None else b"[[7],{}]"
    gate = await outbox.open(lease, "card.charge", user_key="order:7", compensation=compensation, arguments=arguments)
    if answer:
        await outbox.answer(lease, gate, answer)
    return lease, gate


async def test_a_compensation_under_a_key_is_answered_as_it_was(harness, outbox, engine):
    lease, gate = await a_charge(harness, outbox)
    await engine.catalog.declare(1, a.ACTION, "default", engine.catalog.policy(lease.claimed.policy_id), "")
    await harness.settle(lease, Completed(b"1"))
    asked = {"actor": "ada", "reason": "wrong", "once": IdempotentRequest(tenant_id=1, key="k", digest=b"asked")}
    done = await compensate(engine.database, engine.catalog, 1, gate.key, **asked)
    with pytest.raises(ReplayedResponse) as before:
        await compensate(engine.database, engine.catalog, 1, gate.key, **asked)
    assert msgspec.json.decode(before.value.answer, type=Compensation) == done and done.is_new


async def test_a_compensation_is_enqueued_once_with_what_it_needs(harness, outbox, engine, undo):
    lease, gate = await a_charge(harness, outbox)
    policy = engine.catalog.policy(lease.claimed.policy_id)
    await engine.catalog.declare(1, a.ACTION, "default", policy, "")
    with pytest.raises(Conflict, match="is not over"):
        await undo(gate.key)
    await harness.settle(lease, Completed(b"1"))
    done = await asyncio.gather(*(undo(gate.key) for _ in range(4)))
    assert len({one.task_id for one in done}) == 1 and sum(one.is_new for one in done) == 1
    claimed = (await harness.claim_one()).claimed
    assert msgspec.json.decode(claimed.input) == {
        "effect": {
            "name": "card.charge",
            "idempotency_key": gate.key,
            "user_key": "order:7",
            "task_id": lease.task_id,
            "arguments": [[7], {}],
            "receipt": 7,
        }
    }
    [effect] = await list_effects(engine.database, 1)
    assert (effect.compensation, effect.compensated_by) == (a.ACTION, str(claimed.task_id))
    event = await engine.database.fetchrow("select * from holdfast.event where kind = 'effect.compensated'")
    assert event["task_ids"] == [lease.claimed.task_id] and "wrong customer" in event["detail"]


async def test_what_was_undone_is_neither_sent_again_nor_answered_with_its_receipt(harness, outbox, engine, undo):
    lease, gate = await a_charge(harness, outbox)
    await engine.catalog.declare(1, a.ACTION, "default", engine.catalog.policy(lease.claimed.policy_id), "")
    await harness.settle(lease, Failed(a.a_failure("validation: no")))
    await undo(gate.key)
    await harness.retry(lease.task_id)
    with pytest.raises(Conflict) as refused:
        await outbox.open(await harness.claim_task(lease.task_id), "card.charge", user_key="order:7")
    assert refused.value.code == "effect_compensated"


@pytest.mark.parametrize(
    ("options", "words"),
    [({"compensation": None}, "no compensation was registered"), ({"answer": "refused"}, "nothing to undo")],
)
async def test_what_cannot_be_undone_says_why(options, words, harness, outbox, undo):
    lease, gate = await a_charge(harness, outbox, **options)
    await harness.settle(lease, Completed(b"1"))
    with pytest.raises(Conflict, match=words):
        await undo(gate.key)


async def test_an_undoing_action_must_be_known(harness, outbox, undo):
    lease, gate = await a_charge(harness, outbox, compensation="shop.refund")
    await harness.settle(lease, Completed(b"1"))
    with pytest.raises(NotFound, match=r"shop\.refund"):
        await undo(gate.key)
    with pytest.raises(NotFound, match="no effect"):
        await undo("hf-nothing")


async def test_an_effect_taken_over_meanwhile_cannot_be_answered_by_the_first(harness, outbox, engine):
    first, second = [await a.a_running_task(harness) for _ in range(2)]
    gate = await outbox.open(first)
    await outbox.answer(first, gate, "unknown", message="no answer")
    await engine.database.fetch(
        "update holdfast.effect set task_id = $1, lease_token = $2", second.claimed.task_id, second.token
    )
    with pytest.raises(Unavailable, match="taken over"):
        await outbox.answer(first, gate)


async def test_an_item_made_anew_is_answered_with_the_receipt_of_the_one_before(harness, outbox, subtests):
    for is_remote in [False, True]:
        with subtests.test(is_remote=is_remote):
            outbox.is_remote = is_remote
            run = await harness.runs.start(a_map())
            await step(harness, outputs={0: {"all": [5]}})
            [first] = await harness.claim(10)
            gate = await outbox.open(first, user_key=None)
            await outbox.answer(first, gate)
            await harness.settle(first, Completed(b"1"))
            await finish(harness)
            await harness.runs.retry(run, only="list")
            await step(harness, outputs={0: {"all": [5]}})
            [second] = await harness.claim(10)
            assert second.task_id != first.task_id
            again = await outbox.open(second, user_key=None)
            assert (again.is_open, again.key, again.receipt) == (False, gate.key, b"7")
            await harness.settle(second, Completed(b"1"))
            await finish(harness)
