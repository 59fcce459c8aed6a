"""The scenarios of the sweep that concern effects, what undoes them, and tokens."""

from __future__ import annotations

from typing import Any

from tests.crash import acts
from tests.crash.case import Case
from tests.crash.tasks import ACTION, claim_tasks, enqueue_tasks

from holdfast.core.tasks.outcome import Completed
from holdfast.engine.audit import list_audit
from holdfast.engine.effects.gate import OpenEffect, Sender, list_effects, open_effect
from holdfast.engine.engine import Engine
from holdfast.engine.leases import report_of
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.testing.clock import DatabaseClock


async def arrange_effect(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    await enqueue_tasks(engine, given, 1)
    given["leases"] = [acts.plain_lease(one) for one in await claim_tasks(engine, given, 1)]


async def judge_effect(case: Case) -> None:
    """What was sent stands in the outbox under that key; what was kept is done; what is neither is unknown."""
    effects = await list_effects(case.engine.database, DEFAULT_TENANT_ID, task_ids=[case.given["leases"][0][0]])
    said = {word: value for line in case.said for word, value in line.items()}
    assert len(effects) <= 1
    if "sent" in said:
        assert [one.idempotency_key for one in effects] == [said["sent"]]
    if "kept" in said:
        assert effects[0].state == "done"
    assert all(one.state in ("unknown", "done") and one.sends == 1 for one in effects)
    steps = await case.engine.database.fetchval(
        "select count(*) from holdfast.step where task_id = $1", case.given["leases"][0][0]
    )
    assert steps == 1 or "step" not in said


async def arrange_compensation(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """A task that is over and charged a card, with a compensation some worker declared."""
    await enqueue_tasks(engine, given, 1)
    [claimed] = await claim_tasks(engine, given, 1)
    await engine.catalog.declare(DEFAULT_TENANT_ID, ACTION, "default", engine.catalog.policy(claimed.policy_id), "")
    wanted = OpenEffect(
        name="card.charge",
        user_key=f"round:{given['round']}",
        ordinal=0,
        digest=b"",
        compensation=ACTION,
        arguments=b"[]",
    )
    sender = Sender(claimed=claimed, tenant="default")
    given["key"] = (await open_effect(engine.database, engine.catalog, sender, wanted)).key
    async with engine.database.transaction() as session:
        await settle(session, engine.catalog, [report_of(claimed, Completed(b"1"))])


async def judge_compensated(case: Case) -> None:
    """One task undoes the effect and the effect says so, or neither is there."""
    rows = await case.engine.database.fetch(
        "select b.task_id, e.compensated_by from holdfast.effect e"
        " left join holdfast.body b on b.key = 'compensate:' || e.key where e.key = $1",
        case.given["key"],
    )
    assert len(rows) == 1 and rows[0]["task_id"] == rows[0]["compensated_by"]
    if case.said:
        assert {str(rows[0]["task_id"])} == set(case.said)


async def judge_tokens(case: Case) -> None:
    """What was promised is there, and every change has exactly its row in the audit log."""
    tokens = await case.engine.database.fetch(
        "select token_id, revoked_at is not null as is_revoked from holdfast.token"
    )
    found = {("made", row["token_id"]) for row in tokens}
    found |= {("revoked", row["token_id"]) for row in tokens if row["is_revoked"]}
    assert {tuple(one) for one in case.said} <= found
    words = {"token.create": "made", "token.revoke": "revoked"}
    audited = [(words[row.verb], row.subject_id) for row in await list_audit(case.engine.database, DEFAULT_TENANT_ID)]
    assert sorted(audited) == sorted(found)
