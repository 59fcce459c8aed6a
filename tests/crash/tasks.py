"""The scenarios of the sweep that concern single tasks: accepted, claimed, reported on, reaped, canceled, retried."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.crash import acts
from tests.crash.case import Case
from tests.crash.repair import BY_SURVIVOR, register

from holdfast.core.tasks.outcome import Failed
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.engine import Engine
from holdfast.engine.leases import Claimed, report_of
from holdfast.engine.lifecycle.tasks.claim import Claimer, WorkerIdentity
from holdfast.engine.lifecycle.tasks.enqueue import EnqueueOrder, enqueue, intern
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.testing.clock import DatabaseClock
from holdfast.testing.factories import a_failure

ACTION = "shop.charge"


async def enqueue_tasks(engine: Engine, given: dict[str, Any], count: int, **options: Any) -> list[int]:
    policy = RetryPolicy(jitter_factor=0.0, **options.pop("policy", {}))
    order = EnqueueOrder(
        tenant_id=DEFAULT_TENANT_ID,
        queue=options.pop("queue", "default"),
        action=ACTION,
        policy=policy,
        **options,
    )
    inputs = [b'{"round": %d, "number": %d}' % (given["round"], number) for number in range(count)]
    return (await enqueue(engine, await intern(engine.catalog, order), inputs)).task_ids


async def claim_tasks(engine: Engine, given: dict[str, Any], count: int) -> list[Claimed]:
    """Claim as the victim's worker, whose identity goes to the victim."""
    if "worker_id" not in given:
        given["worker_id"] = await register(engine, "victim", [ACTION])
        given["actions"] = [ACTION]
    identity = WorkerIdentity(
        worker_id=given["worker_id"], actions=[ACTION], queues=None, lease_seconds=acts.LEASE_SECONDS
    )
    async with engine.database.session() as session:
        claimed = await Claimer(identity).claim(session, count, now=0.0)
    assert len(claimed) == count
    await engine.catalog.learn((), {one.policy_id for one in claimed})
    return claimed


async def judge_enqueue(case: Case) -> None:
    """Acknowledged: exactly once. Not acknowledged: once or not at all."""
    _all_or_none(case, of=1)


async def judge_one_keyed(case: Case) -> None:
    """The client repeats it under its key by itself, and its caller after that."""
    assert case.said
    _all_or_none(case, of=1)
    assert [one.key for one in case.ended] == [f"order-{case.given['round']}"]


async def arrange_original(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    [given["original"]] = await enqueue_tasks(engine, given, 1)


async def judge_copied(case: Case) -> None:
    _all_or_none(case, of=1)
    for one in case.ended:
        original = await case.engine.database.fetchval(
            "select original_execution from holdfast.tasks where task_id = $1", str(one.task_id)
        )
        assert original == str(case.given["original"])


async def judge_bulk(case: Case) -> None:
    _all_or_none(case, of=6)


def _all_or_none(case: Case, *, of: int) -> None:
    assert len(case.ended) in (0, of)
    assert all(one.state == "completed" and one.output == BY_SURVIVOR for one in case.ended)
    if case.said:
        assert sorted(case.said[-1]) == [one.task_id for one in case.ended]


async def judge_keyed(case: Case) -> None:
    """Repeated under its keys until it was acknowledged: exactly once each, whatever happened to the first try."""
    assert case.said
    assert sorted(case.said[-1]) == [one.task_id for one in case.ended]
    assert all(ids == case.said[-1] for ids in case.said)
    assert Counter(one.key for one in case.ended) == {f"order-{case.given['round']}-{n}": 1 for n in range(2)}


async def arrange_business(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    async with engine.database.session() as session:
        await session.execute("create table if not exists shop_order (round int)")


async def judge_business(case: Case) -> None:
    """The caller's row and the task are there together or not at all."""
    orders = await case.engine.database.fetchval(
        "select count(*) from shop_order where round = $1", case.given["round"]
    )
    assert orders == len(case.ended)
    _all_or_none(case, of=1)


async def arrange_exchange(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """Five leases to report on and two tasks to claim."""
    await enqueue_tasks(engine, given, 7)
    claimed = await claim_tasks(engine, given, 5)
    given["leases"] = [acts.plain_lease(one) for one in claimed]
    given["outcomes"] = ["complete", "complete", "fail", "stop", "complete"]
    given["want"] = 2


async def arrange_completions(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    await enqueue_tasks(engine, given, 3)
    given["leases"] = [acts.plain_lease(one) for one in await claim_tasks(engine, given, 3)]
    given["outcomes"] = ["complete"] * 3
    given["want"] = 0


async def arrange_failure(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    await enqueue_tasks(engine, given, 1)
    given["leases"] = [acts.plain_lease(one) for one in await claim_tasks(engine, given, 1)]
    given["outcomes"] = ["fail"]
    given["want"] = 0


async def arrange_last_failure(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """A retriable failure whose budget is spent."""
    await enqueue_tasks(engine, given, 1, policy={"max_retries": 0})
    given["leases"] = [acts.plain_lease(one) for one in await claim_tasks(engine, given, 1)]
    given["outcomes"] = ["fail"]
    given["want"] = 0
    given["is_last"] = True


async def judge_exchange(case: Case) -> None:
    """Every task ended once; what was acknowledged is what stands; a late copy of the reports changes nothing."""
    by_id = case.by_id()
    assert len(by_id) == len(case.ended) >= len(case.given["leases"])
    for lease, how in zip(case.given["leases"], case.given["outcomes"], strict=True):
        ending = by_id[lease[0]]
        is_accepted = await was_accepted(case, lease)
        if case.said:
            assert is_accepted and lease[0] not in case.said[-1]["refused"]
        if not is_accepted:
            assert (ending.state, ending.output) == ("completed", BY_SURVIVOR)
        elif how == "complete":
            assert (ending.state, ending.output, ending.attempt) == ("completed", acts.BY_VICTIM, 1)
        elif how == "stop" or "is_last" in case.given:
            assert (ending.state, ending.attempt) == ("failed", 1)
        else:
            assert (ending.state, ending.output, ending.attempt) == ("completed", BY_SURVIVOR, 2)
    for task_id in case.said[-1]["claimed"] if case.said else ():
        assert by_id[task_id].output == BY_SURVIVOR
    await _repeat_late(case)


async def was_accepted(case: Case, lease: list[Any]) -> bool:
    """Whether the victim's own report ended its attempt, not the reaper."""
    return bool(
        await case.engine.database.fetchval(
            "select count(*) from holdfast.attempts where task_id = $1 and attempt = $2 and state <> 'lost'"
            " and lease_token = $3::text::uuid",
            str(lease[0]),
            lease[1],
            lease[2],
        )
    )


async def _repeat_late(case: Case) -> None:
    before = await _facts(case.engine)
    async with case.engine.database.transaction() as session:
        await settle(session, case.engine.catalog, acts.reports_of(case.given))
    assert await _facts(case.engine) == before


async def _facts(engine: Engine) -> list[Any]:
    return await engine.database.fetch(
        "select task_id, attempt, state, output from holdfast.attempts union all"
        " select task_id, attempt, state, null from holdfast.tasks order by 1, 2, 3"
    )


async def arrange_expired(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """Leases that expired: one may be lost again, one may not, one passed its deadline, one was asked to stop."""
    for policy in ({}, {"max_losses": 0}, {"timeout_seconds": 5.0}, {}):
        await enqueue_tasks(engine, given, 1, policy=policy)
    claimed = await claim_tasks(engine, given, 4)
    given["task_ids"] = [one.task_id for one in claimed]
    await engine.database.fetch(
        "update holdfast.live set cancel_at = holdfast.instant() where task_id = $1", given["task_ids"][3]
    )
    await clock.advance(seconds=acts.LEASE_SECONDS + 1)


async def judge_reaped(case: Case) -> None:
    """Each lease was ended once, by whichever pass came first, and the ordinary decision followed."""
    assert [(one.state, one.attempt) for one in case.ended] == [
        ("completed", 2),
        ("failed", 1),
        ("completed", 2),
        ("canceled", 1),
    ]
    rows = await case.engine.database.fetch(
        "select state from holdfast.attempts where task_id = any($1::text[]) and attempt = 1 order by task_id::bigint",
        [str(task_id) for task_id in case.given["task_ids"]],
    )
    assert [row["state"] for row in rows] == ["lost", "lost", "timed_out", "canceled"]


async def arrange_due(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """Delayed tasks and a retry, all of them due."""
    await enqueue_tasks(engine, given, 1)
    claimed = await claim_tasks(engine, given, 1)
    async with engine.database.transaction() as session:
        await settle(session, engine.catalog, [report_of(one, Failed(a_failure())) for one in claimed])
    await enqueue_tasks(engine, given, 3, delay_seconds=20.0)
    await clock.advance(seconds=60)


async def judge_reconciled(case: Case) -> None:
    assert [(one.state, one.attempt) for one in case.ended] == [("completed", 2), *[("completed", 1)] * 3]


async def arrange_cancel(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """A running, a queued and a delayed task."""
    running = await enqueue_tasks(engine, given, 1)
    await claim_tasks(engine, given, 1)
    queued = await enqueue_tasks(engine, given, 1)
    delayed = await enqueue_tasks(engine, given, 1, delay_seconds=30.0)
    given["task_ids"] = [*running, *queued, *delayed]


async def judge_canceled(case: Case) -> None:
    """All or none, and none runs after the cancel was acknowledged."""
    states = {one.state for one in case.ended}
    assert len(case.ended) == 3 and states in ({"canceled"}, {"completed"})
    if case.said:
        assert states == {"canceled"}
    if states == {"canceled"}:
        assert {one.attempt for one in case.ended} == {0, 1}


async def arrange_failed(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """A task that failed for good and one whose retry waits."""
    given["task_ids"] = await enqueue_tasks(engine, given, 2)
    failures = (a_failure("validation: no such order"), a_failure())
    async with engine.database.transaction() as session:
        for one, failure in zip(await claim_tasks(engine, given, 2), failures, strict=True):
            await settle(session, engine.catalog, [report_of(one, Failed(failure))])


async def judge_retried(case: Case) -> None:
    """Revived once at most: one more attempt, never two."""
    failed, waiting = case.ended
    assert (failed.state, failed.attempt) in (("failed", 1), ("completed", 2))
    assert (waiting.state, waiting.attempt) == ("completed", 2)
    if failed.task_id in case.said:
        assert failed.state == "completed"
