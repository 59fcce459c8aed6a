"""What the victims of the sweep do: one verb each, the way workers, clients and loops call it.

Each act opens the database itself, so that the fault sees its statements from the first one on, and says what it was
promised as soon as it was.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import msgspec
from tests.crash.enqueue_acts import (
    enqueue_bulk,
    enqueue_copy,
    enqueue_delayed,
    enqueue_keyed,
    enqueue_one,
    enqueue_one_keyed,
    enqueue_single,
    enqueue_with_business,
)
from tests.crash.opened import opened
from tests.crash.run_acts import (
    NODE_ACTION,
    a_crash_flow,
    answer_approval,
    answer_parent,
    cancel_run,
    expire_waits,
    finish_cancels,
    move_items,
    pause_run,
    redrive,
    redrive_node,
    resume_run,
    retry_children,
    schedule_by_hand,
    schedule_declare,
    schedule_pass,
    send_signal,
    start_run,
    start_run_keyed,
)

from holdfast.core.effects.effect import EffectState
from holdfast.core.tasks.outcome import Completed, Failed, Outcome
from holdfast.engine.campaigns.advance import campaigns_once
from holdfast.engine.effects import compensate as compensate_verb
from holdfast.engine.effects.gate import AnswerEffect, OpenEffect, Sender, answer_effect, open_effect
from holdfast.engine.effects.steps import StoredStep, keep_step
from holdfast.engine.identity.tokens import create_token, revoke_token
from holdfast.engine.leases import Claimed, Report
from holdfast.engine.lifecycle.dead_letters import commands as dead_letter_commands
from holdfast.engine.lifecycle.dead_letters.reinject import reinject_once
from holdfast.engine.lifecycle.dead_letters.sweep import repair_letters_once, sweep_once
from holdfast.engine.lifecycle.tasks import cancel as cancel_verb
from holdfast.engine.lifecycle.tasks.claim import Claimer, WorkerIdentity, held_by
from holdfast.engine.lifecycle.tasks.exchange import exchange
from holdfast.engine.lifecycle.tasks.reap import reap_once
from holdfast.engine.lifecycle.tasks.reconcile import reconcile_once
from holdfast.engine.lifecycle.tasks.retry import retry as retry_verb
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.engine.maintenance.retention import retain_once
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.store.database import Database
from holdfast.store.migrate import known, migrate
from holdfast.testing.crash import Stage
from holdfast.testing.factories import a_failure

BY_VICTIM = b'"victim"'
LEASE_SECONDS = 10.0

FROM_OTHER_FILES = (
    *(enqueue_bulk, enqueue_copy, enqueue_delayed, enqueue_keyed, enqueue_one, enqueue_one_keyed, enqueue_single),
    *(enqueue_with_business, start_run, start_run_keyed, redrive, redrive_node, pause_run, cancel_run, resume_run),
    *(answer_parent, answer_approval, send_signal, schedule_pass, schedule_by_hand, schedule_declare),
    *(expire_waits, retry_children, move_items, finish_cancels, a_crash_flow, NODE_ACTION),
)
"""A victim is told the name of its act, and looks for it here."""


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
            done = await dead_letter_commands.redrive(
                engine, DEFAULT_TENANT_ID, task_id, actor="victim", reason="fixed"
            )
            stage.say(done.task_id)


async def redrive_group(stage: Stage) -> None:
    async with opened(stage) as engine:
        asked = await dead_letter_commands.redrive_group(
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


async def repair_letters(stage: Stage) -> None:
    async with opened(stage) as engine:
        stage.say(await repair_letters_once(engine.database))


async def retain(stage: Stage) -> None:
    async with opened(stage) as engine:
        stage.say((await retain_once(engine.database, days=stage.given["days"])).dropped)


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
        await keep_step(engine.database, claimed, StoredStep("page", b"", b"1"))
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
        await migrate(database, known(Path(stage.given["later"])))
        stage.say("migrated")
    finally:
        await database.close()


async def rotate_token(stage: Stage) -> None:
    """Make a token and revoke it."""
    async with opened(stage) as engine:
        name = f"round-{stage.given['round']}"
        made = await create_token(engine.database, DEFAULT_TENANT_ID, name=name, role="viewer", actor="ada")
        stage.say(["made", made.token_id])
        await revoke_token(engine.database, DEFAULT_TENANT_ID, name, actor="ada")
        stage.say(["revoked", made.token_id])
