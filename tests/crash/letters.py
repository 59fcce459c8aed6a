"""The scenarios of the sweep that concern dead letters and campaigns."""

from __future__ import annotations

import contextlib
from typing import Any

from tests.crash.case import Case
from tests.crash.tasks import claim_tasks, enqueue_tasks

from holdfast.core.tasks.fingerprint import fingerprint
from holdfast.core.tasks.outcome import Failed
from holdfast.engine.campaigns.advance import campaigns_once
from holdfast.engine.campaigns.commands import abort_campaign, show_campaign, start_campaign
from holdfast.engine.engine import Engine
from holdfast.engine.leases import report_of
from holdfast.engine.lifecycle.dead_letters.commands import redrive_group
from holdfast.engine.lifecycle.dead_letters.sweep import sweep_once
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.errors import Conflict
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.testing.clock import DatabaseClock
from holdfast.testing.engine_harness import EngineHarness
from holdfast.testing.factories import a_failure


async def arrange_dead(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """Two tasks that failed for good, for a reason of this round's own."""
    await engine.database.fetch("delete from holdfast.dead_lease")
    await engine.database.fetch(
        "update holdfast.dead_letter set state = 'ignored', disposition = 'ignored', actor = 'x' where state = 'open'"
    )
    given["task_ids"] = await enqueue_tasks(engine, given, 2, policy={"max_retries": 0})
    failure = a_failure(f"broken by {'x' * given['round']}")
    given["fingerprint"] = fingerprint(Failed(failure))
    async with engine.database.transaction() as session:
        for one in await claim_tasks(engine, given, 2):
            await settle(session, engine.catalog, [report_of(one, Failed(failure))])


async def arrange_requested(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """The same, asked to be retried."""
    await arrange_dead(engine, clock, given)
    await redrive_group(engine, DEFAULT_TENANT_ID, given["fingerprint"], actor="ann", reason="fixed")


async def arrange_campaign(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """A campaign over two letters, about to release them."""
    await arrange_dead(engine, clock, given)
    view = await start_campaign(engine, DEFAULT_TENANT_ID, given["fingerprint"], actor="ann", reason="fixed")
    given["campaign_id"] = int(view.campaign_id)


async def judge_campaign(case: Case) -> None:
    """Released together and counted, or not at all; the next pass makes good what this one did not do."""
    engine, campaign_id = case.engine, case.given["campaign_id"]
    states = {(one.state, one.attempt) for one in case.ended}
    assert states in ({("failed", 1)}, {("completed", 2)})
    view = await show_campaign(engine, DEFAULT_TENANT_ID, campaign_id)
    assert view.released == (2 if states == {("completed", 2)} else 0)
    assert not case.said or case.said[-1] == 0 or view.released == 2
    await campaigns_once(engine.database, engine.catalog)
    view = await show_campaign(engine, DEFAULT_TENANT_ID, campaign_id)
    assert (view.released, view.state) == ((2, "completed") if states == {("completed", 2)} else (2, "canary"))
    await abort_campaign_if_open(engine, campaign_id)
    for task_id in case.given["task_ids"]:  # what the last pass released is none of the next round's
        await EngineHarness(engine).cancel(task_id)


async def abort_campaign_if_open(engine: Engine, campaign_id: int) -> None:
    with contextlib.suppress(Conflict):
        await abort_campaign(engine, DEFAULT_TENANT_ID, campaign_id, actor="ann", reason="")


async def arrange_unnoticed(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """The same, retried and failed again without an update of their letters."""
    await arrange_requested(engine, clock, given)
    await sweep_once(engine.database, engine.catalog)
    async with engine.database.transaction() as session:
        for one in await claim_tasks(engine, given, 2):
            await settle(session, engine.catalog, [report_of(one, Failed(a_failure()))])
    mine = given["task_ids"]
    await engine.database.fetch("delete from holdfast.dead_letter where task_id = any($1) and state = 'open'", mine)
    await engine.database.fetch("update holdfast.dead_letter set wants_sweep = false where task_id = any($1)", mine)
    await engine.database.fetch("update holdfast.ended set has_letter = false where task_id = any($1)", mine)


async def judge_redriven(case: Case) -> None:
    """Each was requeued once at most, its letter tells so, and what was acknowledged happened."""
    letters = await _letters(case)
    assert len(letters) == len(case.ended) == 2
    for ending, letter in zip(case.ended, letters, strict=True):
        if ending.state == "completed":
            assert (ending.attempt, letter["state"], letter["dispatches"]) == (2, "resolved", 1)
        else:
            assert (ending.state, ending.attempt, letter["dispatches"]) == ("failed", 1, 0)
    done = {one.task_id for one in case.ended if one.state == "completed"}
    assert {int(said) for said in case.said if said is not None} <= done


async def judge_swept(case: Case) -> None:
    """A sweep that died is made good by the next."""
    letters = await _letters(case)
    assert {letter["dispatches"] for letter in letters} == {1 if letters[0]["state"] == "resolved" else 0}
    assert {(one.state, one.attempt) for one in case.ended} <= {("completed", 2), ("failed", 1)}
    if case.said and case.said[-1] == 2:
        assert {one.state for one in case.ended} == {"completed"}


async def judge_asked(case: Case) -> None:
    """All letters of a group are asked for, or none."""
    states = {letter["state"] for letter in await _letters(case)}
    assert states in ({"open"}, {"retry_requested"})
    assert not case.said or states == {"retry_requested"}


async def judge_repaired(case: Case) -> None:
    """The sweep gets all letters of a pass, or none."""
    letters = await _letters(case)
    wanted = {letter["wants_sweep"] for letter in letters}
    assert (len(letters), len(wanted)) == (2, 1)
    assert not case.said or wanted == {True}
    # The sweep of the next round leaves them alone.
    await case.engine.database.fetch(
        "update holdfast.dead_letter set state = 'ignored', wants_sweep = false where task_id = any($1)",
        case.given["task_ids"],
    )


async def _letters(case: Case) -> list[Any]:
    return await case.engine.database.fetch(
        "select * from holdfast.dead_letter where task_id = any($1) order by task_id", case.given["task_ids"]
    )
