"""The scenarios of the sweep: what is there before an act, and what must be true after the crash and the repair."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.crash import acts, runs, schedules
from tests.crash.repair import BY_SURVIVOR, Ended, register

from holdfast.core.circuit import Breaker
from holdfast.core.fingerprint import fingerprint
from holdfast.core.outcome import Completed, Failed
from holdfast.core.quota import Quota
from holdfast.core.retry import RetryPolicy
from holdfast.dispatcher.audit import list_audit
from holdfast.dispatcher.campaign import campaigns_once
from holdfast.dispatcher.campaigns import abort_campaign, show_campaign, start_campaign
from holdfast.dispatcher.claim import Claimer, WorkerIdentity
from holdfast.dispatcher.effects import OpenEffect, Sender, list_effects, open_effect
from holdfast.dispatcher.engine import Engine
from holdfast.dispatcher.enqueue import Order, enqueue
from holdfast.dispatcher.guard import Guards, declare_guards
from holdfast.dispatcher.leases import Claimed, report_of
from holdfast.dispatcher.quotas import set_quota
from holdfast.dispatcher.recover import redrive_group
from holdfast.dispatcher.settle import settle
from holdfast.errors import Conflict
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.testing.clock import Clock
from holdfast.testing.factories import a_failure

ACTION = "shop.charge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One round of a sweep, after the repair: what was arranged, said, and became of it."""

    engine: Engine
    given: dict[str, Any]
    said: Sequence[Any]
    ended: list[Ended]

    def by_id(self) -> dict[int, Ended]:
        return {one.task_id: one for one in self.ended}


Arrange = Callable[[Engine, Clock, dict[str, Any]], Awaitable[None]]
Judge = Callable[[Case], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`is_repeatable`: the caller may repeat the act after an unknown outcome, and does."""

    name: str
    arrange: Arrange
    judge: Judge
    is_repeatable: bool = True
    statements_min: int = 1


async def enqueue_tasks(engine: Engine, given: dict[str, Any], count: int, **options: Any) -> list[int]:
    policy = RetryPolicy(jitter_factor=0.0, **options.pop("policy", {}))
    order = Order(
        tenant_id=DEFAULT_TENANT_ID,
        queue=options.pop("queue", "default"),
        action=ACTION,
        policy=policy,
        **options,
    )
    inputs = [b'{"round": %d, "number": %d}' % (given["round"], number) for number in range(count)]
    return (await enqueue(engine.database, engine.catalog, order, inputs)).task_ids


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


async def nothing(engine: Engine, clock: Clock, given: dict[str, Any]) -> None:
    pass


async def judge_enqueue(case: Case) -> None:
    """Acknowledged: exactly once. Not acknowledged: once or not at all."""
    _all_or_none(case, of=1)


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


async def arrange_business(engine: Engine, clock: Clock, given: dict[str, Any]) -> None:
    async with engine.database.session() as session:
        await session.execute("create table if not exists shop_order (round int)")


async def judge_business(case: Case) -> None:
    """The caller's row and the task are there together or not at all."""
    orders = await case.engine.database.fetchval(
        "select count(*) from shop_order where round = $1", case.given["round"]
    )
    assert orders == len(case.ended)
    _all_or_none(case, of=1)


async def arrange_exchange(engine: Engine, clock: Clock, given: dict[str, Any]) -> None:
    """Five leases to report on and two tasks to claim."""
    await enqueue_tasks(engine, given, 7)
    claimed = await claim_tasks(engine, given, 5)
    given["leases"] = [acts.plain_lease(one) for one in claimed]
    given["outcomes"] = ["complete", "complete", "fail", "stop", "complete"]
    given["want"] = 2


async def arrange_completions(engine: Engine, clock: Clock, given: dict[str, Any]) -> None:
    await enqueue_tasks(engine, given, 3)
    given["leases"] = [acts.plain_lease(one) for one in await claim_tasks(engine, given, 3)]
    given["outcomes"] = ["complete"] * 3
    given["want"] = 0


async def arrange_failure(engine: Engine, clock: Clock, given: dict[str, Any]) -> None:
    await enqueue_tasks(engine, given, 1)
    given["leases"] = [acts.plain_lease(one) for one in await claim_tasks(engine, given, 1)]
    given["outcomes"] = ["fail"]
    given["want"] = 0


async def arrange_last_failure(engine: Engine, clock: Clock, given: dict[str, Any]) -> None:
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
        was_accepted = await _was_accepted(case, lease)
        if case.said:
            assert was_accepted and lease[0] not in case.said[-1]["refused"]
        if not was_accepted:
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


async def _was_accepted(case: Case, lease: list[Any]) -> bool:
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


async def arrange_limited(engine: Engine, clock: Clock, given: dict[str, Any]) -> None:
    """Four tasks of a queue that may run two at once and start a few a second."""
    given["queue"] = f"limited-{given['round']}"
    await enqueue_tasks(engine, given, 4, queue=given["queue"])
    await engine.database.fetch(
        "update holdfast.queue set max_running = 2, starts_per_second = 100 where name = $1", given["queue"]
    )
    given["worker_id"] = await register(engine, "victim", [ACTION])
    given["actions"] = [ACTION]


async def judge_limited(case: Case) -> None:
    assert [one.state for one in case.ended] == ["completed"] * 4
    assert not case.said or len(case.said[-1]) <= 2
    started = await case.engine.database.fetchval(
        "select count(*) from holdfast.attempts where worker_id = $1", case.given["worker_id"]
    )
    assert started <= 2


async def arrange_guarded(engine: Engine, clock: Clock, given: dict[str, Any]) -> None:
    """Three leases of an action whose breaker opens with the second failure."""
    await engine.database.fetch("delete from holdfast.breaker")
    await declare_guards(engine, DEFAULT_TENANT_ID, {ACTION: Guards(breaker=Breaker(attempts_min=2))})
    await enqueue_tasks(engine, given, 3)
    claimed = await claim_tasks(engine, given, 3)
    given["leases"] = [acts.plain_lease(one) for one in claimed]
    given["lane_id"] = claimed[0].lane_id
    given["outcomes"] = ["fail", "complete", "fail"]
    given["opened"] = await _openings(engine)


async def _openings(engine: Engine) -> int:
    found = await engine.database.fetchval("select count(*) from holdfast.event where kind = 'breaker.opened'")
    return int(found)


async def judge_guarded(case: Case) -> None:
    """The breaker opened exactly if the failures that open it were accepted."""
    accepted = [await _was_accepted(case, lease) for lease in case.given["leases"]]
    assert len(set(accepted)) == 1
    assert await _openings(case.engine) - case.given["opened"] == int(accepted[0])
    await judge_exchange(case)


async def arrange_trial(engine: Engine, clock: Clock, given: dict[str, Any]) -> None:
    """An open breaker that may be tried now, with two trials for four tasks."""
    await engine.database.fetch("delete from holdfast.breaker")
    await declare_guards(engine, DEFAULT_TENANT_ID, {ACTION: Guards(breaker=Breaker(trials=2))})
    await enqueue_tasks(engine, given, 4)
    await engine.database.fetch("update holdfast.breaker set state = 'o', trial_at = holdfast.instant()")
    given["worker_id"] = await register(engine, "victim", [ACTION])
    given["actions"] = [ACTION]


async def arrange_metered(engine: Engine, clock: Clock, given: dict[str, Any]) -> None:
    """Five due retries of a queue that may retry two a minute."""
    given["queue"] = f"metered-{given['round']}"
    await enqueue_tasks(engine, given, 5, queue=given["queue"], policy={"base_backoff_secs": 0.0})
    await set_quota(engine, DEFAULT_TENANT_ID, Quota(retries=2), queue=given["queue"], actor="test", reason="")
    claimed = await claim_tasks(engine, given, 5)
    async with engine.database.transaction() as session:
        await settle(session, engine.catalog, [report_of(one, Failed(a_failure())) for one in claimed])


async def judge_metered(case: Case) -> None:
    """Everybody had his retry in the end; what was promoted was counted."""
    assert not case.said or case.said[-1] <= 2
    assert [(one.state, one.attempt) for one in case.ended] == [("completed", 2)] * 5


async def arrange_expired(engine: Engine, clock: Clock, given: dict[str, Any]) -> None:
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


async def arrange_due(engine: Engine, clock: Clock, given: dict[str, Any]) -> None:
    """Delayed tasks and a retry, all of them due."""
    await enqueue_tasks(engine, given, 1)
    claimed = await claim_tasks(engine, given, 1)
    async with engine.database.transaction() as session:
        await settle(session, engine.catalog, [report_of(one, Failed(a_failure())) for one in claimed])
    await enqueue_tasks(engine, given, 3, delay_seconds=20.0)
    await clock.advance(seconds=60)


async def judge_reconciled(case: Case) -> None:
    assert [(one.state, one.attempt) for one in case.ended] == [("completed", 2), *[("completed", 1)] * 3]


async def arrange_cancel(engine: Engine, clock: Clock, given: dict[str, Any]) -> None:
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


async def arrange_failed(engine: Engine, clock: Clock, given: dict[str, Any]) -> None:
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


async def arrange_dead(engine: Engine, clock: Clock, given: dict[str, Any]) -> None:
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


async def arrange_requested(engine: Engine, clock: Clock, given: dict[str, Any]) -> None:
    """The same, asked to be retried."""
    await arrange_dead(engine, clock, given)
    await redrive_group(engine, DEFAULT_TENANT_ID, given["fingerprint"], actor="ann", reason="fixed")


async def arrange_campaign(engine: Engine, clock: Clock, given: dict[str, Any]) -> None:
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


async def abort_campaign_if_open(engine: Engine, campaign_id: int) -> None:
    with contextlib.suppress(Conflict):
        await abort_campaign(engine, DEFAULT_TENANT_ID, campaign_id, actor="ann", reason="")


async def arrange_unlettered(engine: Engine, clock: Clock, given: dict[str, Any]) -> None:
    """The same, settled by a worker that knew no letters."""
    await arrange_dead(engine, clock, given)
    await engine.database.fetch("delete from holdfast.dead_letter where task_id = any($1)", given["task_ids"])
    await engine.database.fetch(
        "update holdfast.ended set has_letter = null where task_id = any($1)", given["task_ids"]
    )


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


async def judge_adopted(case: Case) -> None:
    letters = await _letters(case)
    assert len(letters) in (0, 2) and len({letter["fingerprint"] for letter in letters}) <= 1
    assert not case.said or len(letters) == 2


async def _letters(case: Case) -> list[Any]:
    return await case.engine.database.fetch(
        "select * from holdfast.dead_letter where task_id = any($1) order by task_id", case.given["task_ids"]
    )


async def arrange_effect(engine: Engine, clock: Clock, given: dict[str, Any]) -> None:
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


async def arrange_compensation(engine: Engine, clock: Clock, given: dict[str, Any]) -> None:
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


SCENARIOS = [
    Scenario(name="enqueue_single", arrange=nothing, judge=judge_enqueue, is_repeatable=False, statements_min=7),
    Scenario(name="enqueue_delayed", arrange=nothing, judge=judge_enqueue, is_repeatable=False, statements_min=7),
    Scenario(name="enqueue_bulk", arrange=nothing, judge=judge_bulk, is_repeatable=False, statements_min=9),
    Scenario(name="enqueue_keyed", arrange=nothing, judge=judge_keyed, statements_min=9),
    Scenario(
        name="enqueue_with_business",
        arrange=arrange_business,
        judge=judge_business,
        is_repeatable=False,
        statements_min=9,
    ),
    Scenario(name="exchange_mixed", arrange=arrange_exchange, judge=judge_exchange, statements_min=7),
    Scenario(name="exchange_completions", arrange=arrange_completions, judge=judge_exchange, statements_min=3),
    Scenario(name="fail_and_retry", arrange=arrange_failure, judge=judge_exchange, statements_min=3),
    Scenario(name="fail_for_good", arrange=arrange_last_failure, judge=judge_exchange, statements_min=3),
    Scenario(name="claim_limited", arrange=arrange_limited, judge=judge_limited, is_repeatable=False, statements_min=6),
    Scenario(name="fail_guarded", arrange=arrange_guarded, judge=judge_guarded, statements_min=6),
    Scenario(name="claim_trial", arrange=arrange_trial, judge=judge_limited, is_repeatable=False, statements_min=6),
    Scenario(name="reconcile_metered", arrange=arrange_metered, judge=judge_metered, statements_min=7),
    Scenario(name="reap", arrange=arrange_expired, judge=judge_reaped, statements_min=3),
    Scenario(name="reconcile", arrange=arrange_due, judge=judge_reconciled),
    Scenario(name="cancel", arrange=arrange_cancel, judge=judge_canceled, is_repeatable=False),
    Scenario(name="retry", arrange=arrange_failed, judge=judge_retried, is_repeatable=False, statements_min=3),
    Scenario(name="redrive_task", arrange=arrange_dead, judge=judge_redriven, is_repeatable=False, statements_min=10),
    Scenario(name="redrive_group", arrange=arrange_dead, judge=judge_asked, statements_min=3),
    Scenario(name="sweep", arrange=arrange_requested, judge=judge_swept, statements_min=4),
    Scenario(name="reinject", arrange=arrange_dead, judge=judge_redriven, is_repeatable=False, statements_min=7),
    Scenario(name="campaigns", arrange=arrange_campaign, judge=judge_campaign, statements_min=8),
    Scenario(name="rotate_token", arrange=nothing, judge=judge_tokens, is_repeatable=False, statements_min=8),
    Scenario(name="adopt", arrange=arrange_unlettered, judge=judge_adopted, statements_min=3),
    Scenario(name="do_effect", arrange=arrange_effect, judge=judge_effect, is_repeatable=False, statements_min=4),
    Scenario(name="compensate", arrange=arrange_compensation, judge=judge_compensated, statements_min=6),
    Scenario(name="start_run", arrange=nothing, judge=runs.judge_started, is_repeatable=False, statements_min=9),
    Scenario(name="start_run_keyed", arrange=nothing, judge=runs.judge_keyed_run, statements_min=11),
    Scenario(name="exchange_join", arrange=runs.arrange_join, judge=runs.judge_run, statements_min=6),
    Scenario(name="exchange_failed_node", arrange=runs.arrange_failure_in_run, judge=runs.judge_run, statements_min=6),
    Scenario(name="exchange_items", arrange=runs.arrange_items, judge=runs.judge_run, statements_min=6),
    Scenario(
        name="redrive",
        arrange=runs.arrange_failed_run,
        judge=runs.judge_redriven,
        is_repeatable=False,
        statements_min=6,
    ),
    Scenario(
        name="cancel_run",
        arrange=runs.arrange_running,
        judge=runs.judge_canceled_run,
        is_repeatable=False,
        statements_min=6,
    ),
    Scenario(
        name="resume_run", arrange=runs.arrange_paused, judge=runs.judge_resumed, is_repeatable=False, statements_min=4
    ),
    Scenario(name="answer_parent", arrange=runs.arrange_child, judge=runs.judge_run, statements_min=5),
    Scenario(
        name="send_signal", arrange=runs.arrange_wait, judge=runs.judge_signal, is_repeatable=False, statements_min=5
    ),
    Scenario(
        name="answer_approval",
        arrange=runs.arrange_approval,
        judge=runs.judge_approval,
        is_repeatable=False,
        statements_min=9,
    ),
    Scenario(name="schedule_tasks", arrange=schedules.arrange_due, judge=schedules.judge_once, statements_min=12),
    Scenario(name="schedule_runs", arrange=schedules.arrange_due_flow, judge=schedules.judge_once, statements_min=11),
    Scenario(name="schedule_waiting", arrange=schedules.arrange_waiting, judge=schedules.judge_once, statements_min=9),
    Scenario(name="schedule_replace", arrange=schedules.arrange_busy, judge=schedules.judge_once, statements_min=17),
    Scenario(
        name="schedule_by_hand",
        arrange=schedules.arrange_kept,
        judge=schedules.judge_by_hand,
        is_repeatable=False,
        statements_min=8,
    ),
    Scenario(name="schedule_declare", arrange=nothing, judge=schedules.judge_declared, statements_min=2),
]
ACT_OF = {
    "claim_trial": "claim_limited",
    "reconcile_metered": "reconcile",
    "exchange_mixed": "exchange_reports",
    "exchange_completions": "exchange_reports",
    "fail_and_retry": "exchange_reports",
    "fail_for_good": "exchange_reports",
    "exchange_join": "exchange_reports",
    "exchange_failed_node": "exchange_reports",
    "exchange_items": "exchange_reports",
    "schedule_tasks": "schedule_pass",
    "schedule_runs": "schedule_pass",
    "schedule_waiting": "schedule_pass",
    "schedule_replace": "schedule_pass",
}
