"""Something of every kind in one tenant, and more of it where a request uses it up: so that requests can succeed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count, product
from typing import Any

from tests.core.flows import a_diamond
from tests.datasets.hands import orders
from tests.server.routes import AS_WORKER, REASON, UNDER_A_LEASE, body_for, kinds_of
from tests.tenants.acme import WHO, an_approval, everything

from holdfast.core.effects.effect import EffectState
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.campaigns.commands import start_campaign
from holdfast.engine.datasets.cutover import CutoverRequest, cut_over
from holdfast.engine.datasets.declare import declare
from holdfast.engine.effects.gate import AnswerEffect, OpenEffect, Sender, answer_effect, open_effect
from holdfast.testing import factories as a
from holdfast.testing.engine_harness import EngineHarness

SOMEWHERE, NOWHERE = "https://8.8.8.8/hook", "https://203.0.113.7/hook"
"""An address that may be kept, to which nothing is sent here, and one that may not: no made-up host is looked up."""
NAME = "mine"
OTHER = {"action": "shop.other", "worker": "other"}
"""What is made for single requests has an action and a worker of its own: others stop those of the scene."""

PARTS = map("".join, product("bdfklmnprstvz", "aeiou", "ldnrst", "aeiou", "mnrt"))
"""Words that no failure was told with before."""
VERSIONS = count(2)
LEASE = ("task_id", "attempt", "lease_token")

Fresh = Callable[[EngineHarness], Awaitable[dict[str, Any]]]


async def a_scene(harness: EngineHarness) -> dict[str, Any]:
    """One of everything; answers what it is called."""
    engine = harness.engine
    for action in (a.ACTION, OTHER["action"]):
        await engine.catalog.declare(engine.tenant_id, action, "default", RetryPolicy(), "1")
    made = await everything(engine, harness, "default", NAME)
    await harness.enqueue_many(a.a_task(), [{}] * 50)
    return {**made, "webhook": NAME}


async def a_failure(harness: EngineHarness, *, message: str = "broken by hand", **options: Any) -> dict[str, Any]:
    """A task that failed for good, in its own way."""
    lease = await a.a_running_task(harness, **OTHER, **{"max_retries": 0, **options})
    await harness.settle(lease, Failed(a.a_failure(message)))
    [letter] = await harness.letters(lease.task_id)
    return {"task": lease.task_id, "failed": lease.task_id, "fingerprint": letter.fingerprint}


async def a_refusal(harness: EngineHarness) -> dict[str, Any]:
    """A task that failed for good with budget left."""
    return await a_failure(harness, message="validation: no such order", max_retries=3)


async def a_new_failure(harness: EngineHarness) -> dict[str, Any]:
    """One that nothing else failed like."""
    return await a_failure(harness, message=f"the {next(PARTS)} is broken")


async def an_asking_campaign(harness: EngineHarness) -> dict[str, Any]:
    return await _a_campaign(harness, needs_approval=True)


async def a_stopped_campaign(harness: EngineHarness) -> dict[str, Any]:
    """Its first task failed again as it had before."""
    made = await _a_campaign(harness)
    await harness.campaigns_once()
    lease = await harness.claim_task(made["task"], worker=OTHER["worker"])
    await harness.settle(lease, Failed(a.a_failure(made["message"])))
    await harness.campaigns_once()
    return made


async def _a_campaign(harness: EngineHarness, **options: Any) -> dict[str, Any]:
    message = f"the {next(PARTS)} is broken"
    made = await a_failure(harness, message=message)
    engine = harness.engine
    view = await start_campaign(engine, engine.tenant_id, made["fingerprint"], **WHO | {"actor": "ann"}, **options)
    return {**made, "message": message, "campaign": view.campaign_id}


async def a_shown_version(harness: EngineHarness) -> dict[str, Any]:
    """A version of the dataset that readers see, with one before it."""
    engine, version = harness.engine, next(VERSIONS)
    for one in (1, version):
        await declare(engine.database, engine.tenant_id, orders(one))
        await cut_over(engine.database, engine.tenant_id, "orders", one, CutoverRequest(**WHO))
    return {"version": version}


async def a_superseded_version(harness: EngineHarness) -> dict[str, Any]:
    made = await a_shown_version(harness)
    await a_shown_version(harness)
    return made


async def a_reversible_effect(harness: EngineHarness) -> dict[str, Any]:
    """An effect that was done and says how it is undone."""
    engine, lease = harness.engine, await a.a_running_task(harness, **OTHER)
    sender = Sender(claimed=lease.claimed, tenant="default")
    how = {"compensation": OTHER["action"], "arguments": b"{}"}
    wanted = OpenEffect(name="smtp.send", user_key=lease.task_id, ordinal=0, digest=b"", **how)
    gate = await open_effect(engine.database, engine.catalog, sender, wanted)
    answer = AnswerEffect(key=gate.key, state=EffectState.DONE, receipt=b"1")
    await answer_effect(engine.database, lease.claimed, answer)
    await harness.settle(lease, Completed(b"null"))
    return {"effect": gate.key}


async def a_waiting_task(harness: EngineHarness) -> dict[str, Any]:
    return {"task": (await harness.enqueue(a.a_task(action=OTHER["action"]))).task_id}


async def a_run(harness: EngineHarness) -> dict[str, Any]:
    return {"run": await harness.runs.start(a_diamond())}


async def a_paused_run(harness: EngineHarness) -> dict[str, Any]:
    made = await a_run(harness)
    await harness.runs.pause(made["run"])
    return made


async def a_failed_run(harness: EngineHarness) -> dict[str, Any]:
    made = await a_run(harness)
    lease = await harness.claim_task(str(int(made["run"]) + 1), worker=OTHER["worker"])
    await harness.settle(lease, Failed(a.a_failure()))
    return made


async def a_question(harness: EngineHarness) -> dict[str, Any]:
    return {"asking": await harness.runs.start(an_approval())}


async def a_lease(harness: EngineHarness) -> dict[str, Any]:
    """A worker with a task in hand, for which it has begun an effect."""
    lease = await a.a_running_task(harness, **OTHER)
    sender = Sender(claimed=lease.claimed, tenant="default")
    wanted = OpenEffect(name="smtp.send", user_key=lease.task_id, ordinal=0, digest=b"")
    gate = await open_effect(harness.engine.database, harness.engine.catalog, sender, wanted)
    held = {"task_id": lease.task_id, "attempt": lease.attempt, "lease_token": str(lease.token)}
    return {**held, "worker_id": str(lease.worker_id), "idempotency_key": gate.key}


async def a_reservation(harness: EngineHarness) -> dict[str, Any]:
    """A task that waits for the worker that was launched for it."""
    made = await a_lease(harness)
    task = await harness.enqueue(a.a_task(action=OTHER["action"]))
    kept = await harness.reserve(task.task_id)
    assert kept is not None
    return made | {"task_id": task.task_id, "attempt": kept.attempt, "launch_token": str(kept.token)}


async def a_leaver(harness: EngineHarness) -> dict[str, Any]:
    return {"worker_id": str(await harness.worker_id("leaver"))}


FRESH: dict[str, Fresh] = {
    "POST /internal/attach": a_reservation,
    "POST /internal/leave": a_leaver,
    "POST /api/v1/tasks/{task_id}/retry": a_refusal,
    "POST /api/v1/executions/{task_id}/retry": a_refusal,
    "POST /dashboard/executions/{task_id}/retry": a_refusal,
    "POST /api/v1/tasks/{task_id}/cancel": a_waiting_task,
    "POST /api/v1/runs/{run_id}/retry": a_failed_run,
    "GET /api/v1/runs/{run_id}/retry-plan": a_failed_run,
    "POST /api/v1/runs/{run_id}/cancel": a_run,
    "POST /api/v1/runs/{run_id}/pause": a_run,
    "POST /api/v1/runs/{run_id}/resume": a_paused_run,
    "POST /api/v1/runs/{run_id}/nodes/{node}/approve": a_question,
    "POST /api/v1/runs/{run_id}/nodes/{node}/reject": a_question,
    "POST /api/v1/campaigns": a_new_failure,
    "POST /api/v1/campaigns/{campaign_id}/approve": an_asking_campaign,
    "POST /api/v1/campaigns/{campaign_id}/abort": an_asking_campaign,
    "POST /api/v1/campaigns/{campaign_id}/resume": a_stopped_campaign,
    "POST /api/v1/datasets/{name}/versions/{version}/rollback": a_shown_version,
    "POST /api/v1/datasets/{name}/versions/{version}/drop": a_superseded_version,
    "POST /api/v1/effects/compensate": a_reversible_effect,
}
"""What is made before a request, because an earlier one used up what was there."""

BODIES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "/api/v1/tasks": lambda _: {"action": a.ACTION},
    "/api/v1/tasks/batch": lambda _: {"action": a.ACTION, "inputs": [{}, {}]},
    "/api/v1/runs": lambda scene: {"flow": scene["flow"]},
    "/api/v1/signals": lambda _: {"name": "payment"},
    "/api/v1/quotas": lambda _: {"retries": "100/1m", **REASON},
    "/api/v1/schedules": lambda _: {"name": "another", "action": a.ACTION, "every": "1h"},
    "/api/v1/campaigns": lambda scene: {"fingerprint": scene["fingerprint"], **REASON},
    "/api/v1/effects/compensate": lambda scene: {"idempotency_key": scene["effect"], **REASON},
    "/api/v1/webhooks": lambda _: {"name": "another", "url": SOMEWHERE},
    "/api/v1/tokens": lambda _: {"name": "another", "role": "viewer"},
    "/internal/workers": lambda _: {"worker_id": "another", "actions": [a.ACTION]},
    "/internal/progress": lambda scene: {
        "notes": [
            {**{name: scene[name] for name in LEASE}, "events": [{"kind": "log", "detail": {"message": "half way"}}]}
        ]
    },
    "/api/v1/members": lambda _: {"issuer": "google", "subject": "another", "role": "viewer"},
}
"""What routes take that name in their body what they are about."""


async def made_for(harness: EngineHarness, label: str, scene: dict[str, Any]) -> dict[str, Any]:
    """The scene for one request, with something of its own where it needs that."""
    kinds = {"/dead/": a_failure, "/internal/": a_lease}
    fresh = FRESH.get(label) or next((made for part, made in kinds.items() if part in label), None)
    return scene if fresh is None else scene | await fresh(harness)


def path_about(path: str, scene: dict[str, Any]) -> dict[str, str]:
    """What the placeholders of a path stand for in the scene."""
    return {name: str(scene[kind]) for name, kind in kinds_of(path).items()}


def body_about(path: str, scene: dict[str, Any]) -> dict[str, Any]:
    """A body that the route takes."""
    lease = {name: scene[name] for name in LEASE if name in scene}
    if path in UNDER_A_LEASE:
        keyed = {"idempotency_key": scene["idempotency_key"]} if path.endswith("/answer") else {}
        return lease | UNDER_A_LEASE[path] | keyed
    if path in AS_WORKER:
        launched = {name: scene[name] for name in ("launch_token",) if name in scene}
        return {"worker_id": scene["worker_id"], **AS_WORKER[path](lease), **launched}
    told = BODIES.get(path)
    return told(scene) if told is not None else body_for("POST", path) or {}


def held_in(body: dict[str, Any], scene: dict[str, Any]) -> dict[str, Any]:
    """Of a made-up body of a worker, what would name a real one and its lease."""
    return {name: scene[name] for name in ("worker_id", *LEASE) if name in body and name in scene}
