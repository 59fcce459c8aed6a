"""What belongs to another tenant is answered like what does not exist, by every verb, and nothing of it changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.tenants.acme import CANARY, MISSING, WHO, rows_of

from holdfast.client.client import Client
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import Node, NodeKind
from holdfast.core.limits.breaker import CircuitState
from holdfast.core.tasks.outcome import Completed
from holdfast.engine.campaigns.commands import (
    abort_campaign,
    approve_campaign,
    resume_campaign,
    show_campaign,
    start_campaign,
)
from holdfast.engine.campaigns.plan import plan_campaign
from holdfast.engine.datasets import cutover
from holdfast.engine.datasets.cutover import CutoverRequest
from holdfast.engine.datasets.declare import list_generations, recent_commits
from holdfast.engine.effects import gate
from holdfast.engine.effects.compensate import compensate
from holdfast.engine.engine import Engine
from holdfast.engine.lifecycle.dead_letters import commands as dead_letter_commands
from holdfast.engine.lifecycle.dead_letters.reinject import reinject_once
from holdfast.engine.lifecycle.runs import commands as run_commands
from holdfast.engine.lifecycle.runs import pause
from holdfast.engine.lifecycle.runs.approvals import answer_approval
from holdfast.engine.lifecycle.runs.signals import deliver_once, send_signal
from holdfast.engine.lifecycle.tasks.cancel import cancel
from holdfast.engine.lifecycle.tasks.copy import CopyOptions, copy_task
from holdfast.engine.lifecycle.tasks.retry import retry
from holdfast.engine.limits import queues
from holdfast.engine.limits.breakers import show_breaker, steer
from holdfast.engine.queries import dead_letters, schedules, task_detail, tasks, workers
from holdfast.engine.queries.events import event_tail, events_after, run_events_after
from holdfast.engine.queries.explain_run import why, why_node, why_run
from holdfast.engine.queries.runs import show_run
from holdfast.engine.queries.task_snapshot import capture
from holdfast.engine.schedules import commands as schedule_commands
from holdfast.engine.workers.drain import drain_worker
from holdfast.errors import HoldfastError, NotFound
from holdfast.server.worker_api.remote_workers import CompletedReport, RemoteWorkers
from holdfast.testing import factories as a
from holdfast.testing.engine_harness import EngineHarness

ASKING = CutoverRequest(**WHO)
A_WAIT = FlowDefinition(name="shop.wait", nodes=(Node(name="paid", action="payment", kind=NodeKind.WAIT),))
GRACE = {"grace_seconds": 1.0}
Verb = Callable[[Engine, Any], Awaitable[Any]]


async def asked(engine: Engine, question: Callable[[Client], Awaitable[Any]]) -> Any:
    """The answer that a client of this engine gets."""
    async with Client.over(engine) as client:
        return await question(client)


VERBS: dict[str, tuple[str, Verb]] = {
    "result": ("failed", lambda e, i: asked(e, lambda client: client.result(str(i), timeout=5))),
    "wait for": ("task", lambda e, i: asked(e, lambda client: client.result(str(i), timeout=0.05))),
    "result of a run": ("run", lambda e, i: asked(e, lambda client: client.run(str(i)).result(timeout=0.05))),
    "output of a run": ("run", lambda e, i: asked(e, lambda client: client.run(str(i)).output())),
    "tasks of a run": ("run", lambda e, i: asked(e, lambda client: client.run(str(i)).tasks())),
    "show": ("task", lambda e, i: task_detail.show_task(e.database, e.catalog, e.tenant_id, i)),
    "why": ("task", lambda e, i: why(e.database, e.catalog, e.tenant_id, i)),
    "notes": ("task", lambda e, i: task_detail.read_notes(e.database, e.tenant_id, i)),
    "capture": ("failed", lambda e, i: capture(e.database, e.catalog, e.tenant_id, i)),
    "copy": ("task", lambda e, i: copy_task(e, e.tenant_id, i, {}, CopyOptions())),
    "cancel": ("task", lambda e, i: cancel(e.database, e.catalog, e.tenant_id, [i], **GRACE, **WHO)),
    "stop": ("running", lambda e, i: cancel(e.database, e.catalog, e.tenant_id, [i], **GRACE, **WHO)),
    "retry": ("failed", lambda e, i: retry(e.database, e.catalog, e.tenant_id, i, **WHO)),
    "effects": ("failed", lambda e, i: gate.list_effects(e.database, e.tenant_id, task_ids=[i])),
    "compensate": ("effect", lambda e, i: compensate(e.database, e.catalog, e.tenant_id, i, **WHO)),
    "redrive": ("failed", lambda e, i: dead_letter_commands.redrive(e, e.tenant_id, i, **WHO)),
    "redrive group": ("fingerprint", lambda e, i: dead_letter_commands.redrive_group(e, e.tenant_id, i, **WHO)),
    "ignore": ("failed", lambda e, i: dead_letter_commands.ignore(e, e.tenant_id, task_id=i, **WHO)),
    "ignore group": ("fingerprint", lambda e, i: dead_letter_commands.ignore(e, e.tenant_id, fingerprint=i, **WHO)),
    "resolve": ("failed", lambda e, i: dead_letter_commands.resolve(e, e.tenant_id, task_id=i, **WHO)),
    "letters of a task": ("failed", lambda e, i: dead_letters.list_letters(e.database, e.tenant_id, task_id=i)),
    "letters of a group": (
        "fingerprint",
        lambda e, i: dead_letters.list_letters(e.database, e.tenant_id, fingerprint=i),
    ),
    "letter": ("letter", lambda e, i: dead_letters.show_letter(e.database, e.tenant_id, i)),
    "plan campaign": ("fingerprint", lambda e, i: plan_campaign(e, e.tenant_id, i)),
    "start campaign": ("fingerprint", lambda e, i: start_campaign(e, e.tenant_id, i, **WHO)),
    "show campaign": ("campaign", lambda e, i: show_campaign(e, e.tenant_id, i)),
    "approve campaign": ("campaign", lambda e, i: approve_campaign(e, e.tenant_id, i, actor="anna")),
    "abort campaign": ("campaign", lambda e, i: abort_campaign(e, e.tenant_id, i, **WHO)),
    "resume campaign": ("campaign", lambda e, i: resume_campaign(e, e.tenant_id, i, **WHO)),
    "show run": ("run", lambda e, i: show_run(e.database, e.catalog, e.tenant_id, i)),
    "why run": ("run", lambda e, i: why_run(e.database, e.catalog, e.tenant_id, i)),
    "why node": ("run", lambda e, i: why_node(e.database, e.catalog, e.tenant_id, i, "a")),
    "run events": ("run", lambda e, i: run_events_after(e.database, e.tenant_id, i)),
    "pause run": ("run", lambda e, i: pause.pause_run(e.database, e.tenant_id, i, **WHO)),
    "resume run": ("run", lambda e, i: pause.resume_run(e.database, e.catalog, e.tenant_id, i, **WHO)),
    "cancel run": ("run", lambda e, i: run_commands.cancel_run(e.database, e.catalog, e.tenant_id, i, **GRACE, **WHO)),
    "retry run": ("run", lambda e, i: run_commands.retry_run(e.database, e.catalog, e.tenant_id, i, **WHO)),
    "signal": (
        "run",
        lambda e, i: send_signal(e.database, e.catalog, e.tenant_id, "go", b"1", run_id=i, actor="anna"),
    ),
    "approve": (
        "run",
        lambda e, i: answer_approval(e.database, e.catalog, e.tenant_id, i, "a", is_given=True, **WHO),
    ),
    "schedule": ("schedule", lambda e, i: schedules.find_schedule(e.database, e.tenant_id, i)),
    "slots": ("schedule", lambda e, i: schedules.list_slots(e.database, e.tenant_id, i)),
    "pause schedule": ("schedule", lambda e, i: schedule_commands.pause(e, e.tenant_id, i, **WHO)),
    "resume schedule": ("schedule", lambda e, i: schedule_commands.resume(e, e.tenant_id, i, **WHO)),
    "fire": ("schedule", lambda e, i: schedule_commands.fire(e, e.tenant_id, i, **WHO)),
    "delete schedule": ("schedule", lambda e, i: schedule_commands.delete_schedule(e, e.tenant_id, i, **WHO)),
    "generations": ("dataset", lambda e, i: list_generations(e.database, e.tenant_id, i)),
    "commits": ("dataset", lambda e, i: recent_commits(e.database, e.tenant_id, i, limit=5)),
    "cut over": ("dataset", lambda e, i: cutover.cut_over(e.database, e.tenant_id, i, 1, ASKING)),
    "roll back": ("dataset", lambda e, i: cutover.roll_back(e.database, e.tenant_id, i, 1, ASKING)),
    "drop": ("dataset", lambda e, i: cutover.drop(e.database, e.tenant_id, i, 1, ASKING)),
    "queue": ("queue", lambda e, i: queues.require_queue(e.database, e.tenant_id, i)),
    "pause queue": ("queue", lambda e, i: queues.pause(e, e.tenant_id, i, **WHO)),
    "tasks of a queue": ("queue", lambda e, i: tasks.list_tasks(e.database, e.tenant_id, queue=i)),
    "breaker": ("action", lambda e, i: show_breaker(e.database, e.tenant_id, i)),
    "steer": ("action", lambda e, i: steer(e, e.tenant_id, i, CircuitState.OPEN, **WHO)),
    "actions": ("action", lambda e, i: workers.list_actions(e.database, e.tenant_id, name=i)),
    "worker": ("worker", lambda e, i: workers.show_worker(e.database, i, tenant_id=e.tenant_id)),
    "drain": ("worker", lambda e, i: drain_worker(e.database, i, tenant_id=e.tenant_id, **WHO)),
}

WORKER_VERBS: dict[str, tuple[str, Verb]] = {
    "claim as": ("worker", lambda e, i: RemoteWorkers(e).exchange(i, held=None, dones=[], queues=None, limit=5)),
    "claim by name as": ("worker", lambda e, i: RemoteWorkers(e).claim_named(i, MISSING["task"])),
    "exchange as": (
        "worker",
        lambda e, i: RemoteWorkers(e).exchange(i, held=[], dones=[], queues=None, limit=5),
    ),
}


@pytest.fixture(params=["behind the wall", "direct"])
def asking(request, engine):
    """The default tenant's engine: as a server has it, and as a worker on the database has it."""
    return engine.of(1) if request.param == "behind the wall" else engine


async def outcome(verb: Verb, engine: Engine, given: Any) -> str:
    """How a verb ended, in full, but for the name it was given."""
    try:
        value = await verb(engine, given)
        told = f"gave {value!r}"
    except HoldfastError as error:
        told = f"{type(error).__name__} {error.code} {error} {msgspec.json.encode(error.fields, enc_hook=str)!r}"
    return told.replace(str(given), "ID")


async def test_a_stranger_is_nobody(asking, engine, acme, theirs):
    """All verbs on one stage: none of them may change it, so each finds it as the first did."""
    before = await rows_of(engine.database, acme.tenant_id), await rows_of(engine.database, 1)
    told = {}
    for name, (kind, verb) in VERBS.items():
        found, missing = await outcome(verb, asking, theirs[kind]), await outcome(verb, asking, MISSING[kind])
        told[name] = [found, missing]
    assert {name: both for name, both in told.items() if both[0] != both[1]} == {}
    assert {name: both for name, both in told.items() if CANARY in both[0]} == {}
    after = await rows_of(engine.database, acme.tenant_id), await rows_of(engine.database, 1)
    assert after == before


async def test_a_strangers_worker_is_unknown(engine, acme, theirs):
    before = await rows_of(engine.database, acme.tenant_id)
    for kind, verb in WORKER_VERBS.values():
        found, missing = [await outcome(verb, engine.of(1), one[kind]) for one in (theirs, MISSING)]
        assert found == missing and "worker_not_registered" in found
    assert await rows_of(engine.database, acme.tenant_id) == before


async def test_a_strangers_event_releases_nothing(engine, at_acme):
    run_id = await at_acme.runs.start(A_WAIT)
    with pytest.raises(NotFound):
        await send_signal(engine.database, engine.catalog, 1, "payment", b"1", run_id=int(run_id), actor="anna")
    await send_signal(engine.database, engine.catalog, 1, "payment", b"1", actor="anna")
    await deliver_once(engine.database, engine.catalog)
    assert await at_acme.runs.state(run_id) == "open"
    own = at_acme.engine
    await send_signal(own.database, own.catalog, own.tenant_id, "payment", b"1", run_id=int(run_id), actor="anna")
    await deliver_once(engine.database, engine.catalog)
    assert await at_acme.runs.state(run_id) == "completed"


async def test_a_strangers_lease_is_no_lease_even_with_its_token(engine, acme, theirs):
    before = await rows_of(engine.database, acme.tenant_id)
    crew, lease = RemoteWorkers(engine.of(1)), theirs["lease"]
    done = CompletedReport(
        task_id=theirs["running"], attempt=lease.attempt, lease_token=lease.token, outcome=Completed(b'"stolen"')
    )
    worker = await crew.register(name="w", actions=[a.ACTION], queues=None, slots=5, version="", labels="{}")
    for verb in (
        lambda _, task: crew.heartbeat(task, lease.attempt, lease.token),
        lambda _, task: crew.complete(msgspec.structs.replace(done, task_id=task)),
        lambda _, task: crew.claim_named(worker, task),
    ):
        found = await outcome(verb, engine, theirs["running"])
        assert found == await outcome(verb, engine, MISSING["task"]) and CANARY not in found
    answer = await crew.exchange(worker, held=[theirs["running"]], dones=[done], queues=None, limit=5)
    assert (answer.tasks, answer.accepted, answer.lost) == ([], 0, [theirs["running"]])
    assert await rows_of(engine.database, acme.tenant_id) == before


async def test_a_worker_claims_of_its_own_tenant_only(engine, harness, at_acme):
    await at_acme.enqueue(a.a_task())
    harness.know(a.ACTION)
    assert await harness.claim(10) == []
    assert len(await at_acme.claim(10)) == 1


async def test_a_key_of_a_stranger_is_free(harness, theirs):
    mine = await harness.enqueue(a.a_task(key=CANARY))
    assert mine.is_new and int(mine.task_id) != theirs["task"]


async def test_lists_and_events_show_nothing_of_strangers(asking, theirs):
    e, tenant = asking, asking.tenant_id
    assert await tasks.list_tasks(e.database, tenant) == []
    assert (await events_after(e.database, tenant, "0:0:0")).events == []
    assert await dead_letters.dead_groups(e.database, tenant) == []
    assert await queues.list_queues(e.database, tenant) == []
    assert await schedules.list_schedules(e.database, tenant) == []
    assert await workers.list_workers(e.database, tenant_id=tenant) == []
    assert (await reinject_once(e, "w1", 30)).task_id is None


async def test_a_cursor_of_a_stranger_only_says_where_to_go_on(asking, harness, theirs):
    cursor = await event_tail(harness.engine.database)
    lease = await a.a_running_task(harness)
    # Events show once every older transaction of the server is over, also those of databases next door.
    found = []
    while not found:
        found = (await events_after(asking.database, asking.tenant_id, cursor)).events
    assert [one.task_id for one in found] == [lease.task_id]


async def test_each_tenant_sees_its_own(engine, at_acme, theirs):
    own = EngineHarness(engine.of(1))
    mine = await a.a_completed_task(own)
    assert [row.task_id for row in await tasks.list_tasks(engine.of(1).database, 1)] == [mine]
    assert str(theirs["task"]) in {
        row.task_id for row in await tasks.list_tasks(at_acme.engine.database, at_acme.engine.tenant_id)
    }


async def test_a_limit_makes_a_queue_of_ones_own_and_leaves_theirs(engine, acme, theirs):
    before = await rows_of(engine.database, acme.tenant_id)
    await queues.limit(engine, engine.tenant_id, theirs["queue"], max_running=1, starts_per_second=None, **WHO)
    [own] = await queues.list_queues(engine.database, engine.tenant_id, name=theirs["queue"])
    assert own.max_running == 1 and await rows_of(engine.database, acme.tenant_id) == before
