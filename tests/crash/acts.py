"""What the victims of the sweep do: one verb each, the way workers, clients and loops call it.

Each act opens the database itself, so that the fault sees its statements from the first one on, and says what it was
promised as soon as it was.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from holdfast.core.effects import EffectState
from holdfast.core.graph import FlowDefinition
from holdfast.core.nodes import Edge, Node
from holdfast.core.outcome import Completed, Failed, Outcome
from holdfast.core.retry import RetryPolicy
from holdfast.dispatcher import cancel as cancel_verb
from holdfast.dispatcher import compensate as compensate_verb
from holdfast.dispatcher import recover
from holdfast.dispatcher.campaign import campaigns_once
from holdfast.dispatcher.children import answer_once
from holdfast.dispatcher.claim import Claimer, WorkerIdentity, held_by
from holdfast.dispatcher.dead import adopt_once, sweep_once
from holdfast.dispatcher.effects import AnswerEffect, OpenEffect, Sender, answer_effect, open_effect
from holdfast.dispatcher.engine import Engine
from holdfast.dispatcher.enqueue import Order, accept_batches, enqueue, intern
from holdfast.dispatcher.exchange import exchange
from holdfast.dispatcher.leases import Claimed, Report
from holdfast.dispatcher.reap import reap_once
from holdfast.dispatcher.reconcile import reconcile_once
from holdfast.dispatcher.reinject import reinject_once
from holdfast.dispatcher.retain import retain_once
from holdfast.dispatcher.retry import retry as retry_verb
from holdfast.dispatcher.schedules import ScheduleDraft, declare_schedule
from holdfast.dispatcher.settle import settle
from holdfast.dispatcher.start import RunOptions, start
from holdfast.dispatcher.steps import Step, keep_step
from holdfast.dispatcher.tokens import create_token, revoke_token
from holdfast.settings import Settings
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.store.database import Database
from holdfast.store.migrate import migrate
from holdfast.testing.crash import Stage
from holdfast.testing.dispatcher import Dispatcher
from holdfast.testing.factories import a_failure

BY_VICTIM = b'"victim"'
LEASE_SECONDS = 10.0
NODE_ACTION = "shop.node"


@asynccontextmanager
async def opened(stage: Stage) -> AsyncIterator[Engine]:
    """An engine whose statements the fault counts, but not those that open it."""
    async with Engine(stage.url, Settings(), sessions_max=4) as engine:
        engine.database.tap = stage.tap
        yield engine
        engine.database.tap = None


def an_order(stage: Stage, **options: Any) -> Order:
    """A lane and a policy nobody used before, so that interning them is part of the sweep."""
    policy = RetryPolicy(base_backoff_secs=1.0 + stage.given["round"])
    return Order(
        tenant_id=DEFAULT_TENANT_ID,
        queue=f"queue-{stage.given['round']}",
        action=f"shop.act{stage.given['round']}",
        policy=policy,
        **options,
    )


def an_input(stage: Stage, number: int = 0) -> bytes:
    return json.dumps({"round": stage.given["round"], "number": number}).encode()


async def enqueue_single(stage: Stage) -> None:
    async with opened(stage) as engine:
        accepted = await enqueue(engine.database, engine.catalog, an_order(stage), [an_input(stage)])
        stage.say(accepted.task_ids)


async def enqueue_delayed(stage: Stage) -> None:
    async with opened(stage) as engine:
        order = an_order(stage, delay_seconds=30.0)
        accepted = await enqueue(engine.database, engine.catalog, order, [an_input(stage)])
        stage.say(accepted.task_ids)


async def enqueue_bulk(stage: Stage) -> None:
    batches = [[an_input(stage, 10 * batch + n) for n in range(3)] for batch in range(2)]
    async with opened(stage) as engine:
        interned = await intern(engine.catalog, an_order(stage))
        async with engine.database.transaction() as session:
            numbers = await accept_batches(session, interned, batches)
        stage.say(numbers)


async def enqueue_keyed(stage: Stage) -> None:
    keys = [f"order-{stage.given['round']}-{n}" for n in range(2)]
    inputs = [an_input(stage, n) for n in range(2)]
    async with opened(stage) as engine:
        accepted = await enqueue(engine.database, engine.catalog, an_order(stage), inputs, keys=keys)
        stage.say(accepted.task_ids)


async def enqueue_with_business(stage: Stage) -> None:
    """A row of the caller's own and the task that belongs to it, in the caller's transaction."""
    async with opened(stage) as engine:
        async with engine.database.transaction() as session:
            await session.fetch("insert into shop_order (round) values ($1)", stage.given["round"])
            accepted = await enqueue(
                engine.database, engine.catalog, an_order(stage), [an_input(stage)], session=session
            )
        stage.say(accepted.task_ids)


def plain_lease(claimed: Claimed) -> list[Any]:
    """A lease as JSON, to be handed to another process."""
    lease = (claimed.task_id, claimed.attempt, str(claimed.lease_token), claimed.policy_id)
    return [*lease, claimed.retries, claimed.losses]


def a_report(lease: list[Any], outcome: Outcome) -> Report:
    task_id, attempt, token, policy_id, retries, losses = lease
    return Report(task_id, attempt, uuid.UUID(token), policy_id, retries, losses, outcome)


def reports_of(given: dict[str, Any]) -> list[Report]:
    outcomes = {
        "complete": Completed(BY_VICTIM),
        "fail": Failed(a_failure("connection reset by peer")),
        "stop": Failed(a_failure("validation: no such customer")),
    }
    return [a_report(lease, outcomes[how]) for lease, how in zip(given["leases"], given["outcomes"], strict=True)]


def victims_claimer(given: dict[str, Any]) -> Claimer:
    identity = WorkerIdentity(
        worker_id=given["worker_id"], actions=given["actions"], queues=None, lease_seconds=LEASE_SECONDS
    )
    return Claimer(identity)


async def exchange_reports(stage: Stage) -> None:
    """Report and claim on a session of its own, as a worker does."""
    given = stage.given
    async with opened(stage) as engine:
        reports = reports_of(given)
        engine.database.tap, tap = None, engine.database.tap
        await engine.catalog.learn((), {report.policy_id for report in reports})
        engine.database.tap = tap
        session = await engine.database.connect()
        try:
            claimer = victims_claimer(given)
            recovered = await held_by(
                session, claimer.identity, [(report.task_id, report.lease_token) for report in reports]
            )
            done = await exchange(session, engine.catalog, claimer, reports, given["want"] - len(recovered), now=0.0)
        finally:
            await session.close()
        stage.say(
            {
                "accepted": done.settled.accepted,
                "refused": [refusal.task_id for refusal in done.settled.refused],
                "claimed": [claimed.task_id for claimed in (*recovered, *done.claimed)],
            }
        )


async def fail_guarded(stage: Stage) -> None:
    """Report failures of an action with a breaker, as a worker that knows of it does."""
    given = stage.given
    async with opened(stage) as engine:
        reports = [msgspec.structs.replace(report, lane_id=given["lane_id"]) for report in reports_of(given)]
        engine.catalog.guarded.add(given["lane_id"])
        engine.database.tap, tap = None, engine.database.tap
        await engine.catalog.learn((), {report.policy_id for report in reports})
        engine.database.tap = tap
        async with engine.database.transaction() as session:
            settled = await settle(session, engine.catalog, reports)
        stage.say({"accepted": settled.accepted, "refused": [], "claimed": []})


async def claim_limited(stage: Stage) -> None:
    async with opened(stage) as engine, engine.database.session() as session:
        claimed = await victims_claimer(stage.given).claim(session, 4, now=0.0)
        stage.say([one.task_id for one in claimed])


async def reap(stage: Stage) -> None:
    async with opened(stage) as engine:
        stage.say((await reap_once(engine.database, engine.catalog)).count)


async def reconcile(stage: Stage) -> None:
    async with opened(stage) as engine:
        stage.say((await reconcile_once(engine.database)).count)


async def cancel(stage: Stage) -> None:
    async with opened(stage) as engine:
        done = await cancel_verb.cancel(
            engine.database,
            engine.catalog,
            DEFAULT_TENANT_ID,
            stage.given["task_ids"],
            grace_seconds=5.0,
            reason="not wanted",
            actor="victim",
        )
        stage.say({str(task_id): state for task_id, state in done.states.items()})


async def retry(stage: Stage) -> None:
    async with opened(stage) as engine:
        for task_id in stage.given["task_ids"]:
            done = await retry_verb(
                engine.database, engine.catalog, DEFAULT_TENANT_ID, task_id, actor="victim", reason="fixed"
            )
            stage.say(done.task_id)


async def redrive_task(stage: Stage) -> None:
    async with opened(stage) as engine:
        for task_id in stage.given["task_ids"]:
            done = await recover.redrive(engine, DEFAULT_TENANT_ID, task_id, actor="victim", reason="fixed")
            stage.say(done.task_id)


async def redrive_group(stage: Stage) -> None:
    async with opened(stage) as engine:
        asked = await recover.redrive_group(
            engine, DEFAULT_TENANT_ID, stage.given["fingerprint"], actor="victim", reason="fixed"
        )
        stage.say(asked.letters)


async def sweep(stage: Stage) -> None:
    async with opened(stage) as engine:
        stage.say((await sweep_once(engine.database, engine.catalog)).count)


async def reinject(stage: Stage) -> None:
    async with opened(stage) as engine:
        done = await reinject_once(engine, "victim", 30.0)
        stage.say(done.task_id if done.reinjected else None)


async def campaigns(stage: Stage) -> None:
    async with opened(stage) as engine:
        stage.say((await campaigns_once(engine.database, engine.catalog)).released)


async def adopt(stage: Stage) -> None:
    async with opened(stage) as engine:
        stage.say(await adopt_once(engine.database))


async def retain(stage: Stage) -> None:
    async with opened(stage) as engine:
        stage.say(await retain_once(engine.database, days=stage.given["days"]))


async def do_effect(stage: Stage) -> None:
    """Open the gate, send (which is said), keep the receipt and a step: what an attempt does between two hops."""
    async with opened(stage) as engine:
        claimed = lease_of(stage.given["leases"][0])
        wanted = OpenEffect(name="smtp.send", user_key=f"round:{stage.given['round']}", ordinal=0, digest=b"")
        gate = await open_effect(engine.database, engine.catalog, Sender(claimed=claimed, tenant="default"), wanted)
        stage.say({"sent": gate.key})
        answer = AnswerEffect(key=gate.key, state=EffectState.DONE, receipt=b"1")
        await answer_effect(engine.database, claimed, answer)
        stage.say({"kept": gate.key})
        await keep_step(engine.database, claimed, Step("page", b"", b"1"))
        stage.say({"step": True})


def lease_of(lease: list[Any]) -> Claimed:
    task_id, attempt, token, policy_id, retries, losses = lease
    named = (1, policy_id, retries, losses, DEFAULT_TENANT_ID, None, None, b"{}", None)
    return Claimed(task_id, attempt, uuid.UUID(token), *named)


async def compensate(stage: Stage) -> None:
    async with opened(stage) as engine:
        done = await compensate_verb.compensate(
            engine.database, engine.catalog, DEFAULT_TENANT_ID, stage.given["key"], actor="victim", reason="wrong"
        )
        stage.say(done.task_id)


async def migrate_all(stage: Stage) -> None:
    database = await Database(stage.url, sessions_max=2, tap=stage.tap).open()
    try:
        await migrate(database)
        stage.say("migrated")
    finally:
        await database.close()


async def start_run(stage: Stage) -> None:
    """A flow nobody kept before, so that keeping it is part of the sweep."""
    async with opened(stage) as engine:
        runs = Dispatcher(engine).runs
        stage.say([int(one) for one in await runs.start_many(a_crash_flow(stage.given["round"]), [{}, {}])])


async def start_run_keyed(stage: Stage) -> None:
    async with opened(stage) as engine:
        snapshot = await Dispatcher(engine).runs.snapshot(a_crash_flow(stage.given["round"]))
        options = RunOptions(key=f"run-{stage.given['round']}")
        [run_id], _ = await start(engine.database, engine.catalog, snapshot, [b"{}"], options)
        stage.say(run_id)


async def redrive(stage: Stage) -> None:
    async with opened(stage) as engine:
        stage.say(await Dispatcher(engine).runs.retry(str(stage.given["run_id"])))


async def redrive_node(stage: Stage) -> None:
    async with opened(stage) as engine:
        stage.say(await Dispatcher(engine).runs.retry(str(stage.given["run_id"]), only=stage.given["node"]))


async def pause_run(stage: Stage) -> None:
    async with opened(stage) as engine:
        await Dispatcher(engine).runs.pause(str(stage.given["run_id"]))
        stage.say("paused")


async def cancel_run(stage: Stage) -> None:
    async with opened(stage) as engine:
        await Dispatcher(engine).runs.cancel(str(stage.given["run_id"]), grace_seconds=0.0)
        stage.say("canceled")


async def resume_run(stage: Stage) -> None:
    async with opened(stage) as engine:
        await Dispatcher(engine).runs.resume(str(stage.given["run_id"]))
        stage.say("resumed")


async def answer_parent(stage: Stage) -> None:
    async with opened(stage) as engine:
        await answer_once(engine.database, engine.catalog)
        stage.say("answered")


async def send_signal(stage: Stage) -> None:
    async with opened(stage) as engine:
        await Dispatcher(engine).runs.signal(f"event-{stage.given['round']}", stage.given["round"])
        stage.say("sent")


async def answer_approval(stage: Stage) -> None:
    async with opened(stage) as engine:
        await Dispatcher(engine).runs.answer(str(stage.given["run_id"]), "go", actor="ada", reason="fine")
        stage.say("answered")


async def schedule_pass(stage: Stage) -> None:
    async with opened(stage) as engine:
        stage.say(await Dispatcher(engine).schedule_once())


async def schedule_by_hand(stage: Stage) -> None:
    async with opened(stage) as engine:
        stage.say((await Dispatcher(engine).schedules.fire(f"s{stage.given['round']}")).task_id)


async def schedule_declare(stage: Stage) -> None:
    async with opened(stage) as engine:
        draft = ScheduleDraft(
            name=f"s{stage.given['round']}", origin="app:shop", target="shop.charge", cron="0 6 * * mon-fri"
        )
        stage.say(await declare_schedule(engine.database, DEFAULT_TENANT_ID, draft))


def a_crash_flow(version: int) -> FlowDefinition:
    """First, two between, last, each a task."""
    names = ("first", "left", "right", "last")
    edges = (("first", "left"), ("first", "right"), ("left", "last"), ("right", "last"))
    return FlowDefinition(
        name="shop.crash",
        version=version,
        nodes=tuple(Node(name=name, action=NODE_ACTION) for name in names),
        edges=tuple(Edge(upstream=up, downstream=down, is_order_only=True) for up, down in edges),
    )


async def rotate_token(stage: Stage) -> None:
    """Make a token and revoke it."""
    async with opened(stage) as engine:
        name = f"round-{stage.given['round']}"
        made = await create_token(engine.database, DEFAULT_TENANT_ID, name=name, role="viewer", actor="ada")
        stage.say(["made", made.token_id])
        await revoke_token(engine.database, DEFAULT_TENANT_ID, name, actor="ada")
        stage.say(["revoked", made.token_id])
