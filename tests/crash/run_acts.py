"""What victims of the sweep do with runs and schedules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tests.crash.opened import opened

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import Edge, Node
from holdfast.engine.lifecycle.runs.children import answer_once, retry_children_once
from holdfast.engine.lifecycle.runs.commands import finish_cancels_once
from holdfast.engine.lifecycle.runs.items import release_stalled_items_once
from holdfast.engine.lifecycle.runs.signals import expire_waits_once
from holdfast.engine.lifecycle.runs.start import RunOptions, start
from holdfast.engine.schedules.commands import ScheduleDraft, declare_schedule
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.testing.crash import Stage
from holdfast.testing.engine_harness import EngineHarness

NODE_ACTION = "shop.node"


async def start_run(stage: Stage) -> None:
    """A flow nobody kept before, so that keeping it is part of the sweep."""
    async with opened(stage) as engine:
        runs = EngineHarness(engine).runs
        stage.say([int(one) for one in await runs.start_many(a_crash_flow(stage.given["round"]), [{}, {}])])


async def start_run_keyed(stage: Stage) -> None:
    async with opened(stage) as engine:
        snapshot = await EngineHarness(engine).runs.snapshot(a_crash_flow(stage.given["round"]))
        options = RunOptions(key=f"run-{stage.given['round']}")
        [run_id], _ = await start(engine.database, engine.catalog, snapshot, [b"{}"], options)
        stage.say(run_id)


async def redrive(stage: Stage) -> None:
    async with opened(stage) as engine:
        stage.say(await EngineHarness(engine).runs.retry(str(stage.given["run_id"])))


async def redrive_node(stage: Stage) -> None:
    async with opened(stage) as engine:
        stage.say(await EngineHarness(engine).runs.retry(str(stage.given["run_id"]), only=stage.given["node"]))


async def pause_run(stage: Stage) -> None:
    async with opened(stage) as engine:
        await EngineHarness(engine).runs.pause(str(stage.given["run_id"]))
        stage.say("paused")


async def cancel_run(stage: Stage) -> None:
    async with opened(stage) as engine:
        await EngineHarness(engine).runs.cancel(str(stage.given["run_id"]), grace_seconds=0.0)
        stage.say("canceled")


async def resume_run(stage: Stage) -> None:
    async with opened(stage) as engine:
        await EngineHarness(engine).runs.resume(str(stage.given["run_id"]))
        stage.say("resumed")


async def _one_pass(stage: Stage, once: Callable[..., Awaitable[Any]], said: str, **options: Any) -> None:
    """One pass of a loop that repairs."""
    async with opened(stage) as engine:
        await once(engine.database, engine.catalog, **options)
        stage.say(said)


async def answer_parent(stage: Stage) -> None:
    await _one_pass(stage, answer_once, "answered")


async def retry_children(stage: Stage) -> None:
    await _one_pass(stage, retry_children_once, "retried")


async def expire_waits(stage: Stage) -> None:
    await _one_pass(stage, expire_waits_once, "expired")


async def move_items(stage: Stage) -> None:
    await _one_pass(stage, release_stalled_items_once, "moved")


async def finish_cancels(stage: Stage) -> None:
    await _one_pass(stage, finish_cancels_once, "canceled", grace_seconds=0.0)


async def send_signal(stage: Stage) -> None:
    async with opened(stage) as engine:
        await EngineHarness(engine).runs.signal(f"event-{stage.given['round']}", stage.given["round"])
        stage.say("sent")


async def answer_approval(stage: Stage) -> None:
    async with opened(stage) as engine:
        await EngineHarness(engine).runs.answer(str(stage.given["run_id"]), "go", actor="ada", reason="fine")
        stage.say("answered")


async def schedule_pass(stage: Stage) -> None:
    async with opened(stage) as engine:
        stage.say(await EngineHarness(engine).schedule_once())


async def schedule_by_hand(stage: Stage) -> None:
    async with opened(stage) as engine:
        stage.say((await EngineHarness(engine).schedules.fire(f"s{stage.given['round']}")).task_id)


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
