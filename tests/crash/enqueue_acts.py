"""What victims of the sweep do that hand in tasks: by the thousand, one by one, under keys, as copies."""

from __future__ import annotations

import json
from typing import Any

from tests.crash.opened import opened

from holdfast.authoring.action import Action
from holdfast.authoring.app import App
from holdfast.client.client import Client
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.lifecycle.tasks.copy import CopyOptions, copy_task
from holdfast.engine.lifecycle.tasks.enqueue import EnqueueOrder, InputBatches, enqueue, enqueue_in, intern
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.testing.crash import Stage


def an_order(stage: Stage, **options: Any) -> EnqueueOrder:
    """A lane and a policy nobody used before, so that interning them is part of the sweep."""
    policy = RetryPolicy(base_backoff_secs=1.0 + stage.given["round"])
    return EnqueueOrder(
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
        accepted = await enqueue(engine, await intern(engine.catalog, an_order(stage)), [an_input(stage)])
        stage.say(accepted.task_ids)


async def enqueue_delayed(stage: Stage) -> None:
    async with opened(stage) as engine:
        order = an_order(stage, delay_seconds=30.0)
        accepted = await enqueue(engine, await intern(engine.catalog, order), [an_input(stage)])
        stage.say(accepted.task_ids)


async def enqueue_bulk(stage: Stage) -> None:
    batches = [[an_input(stage, 10 * batch + n) for n in range(3)] for batch in range(2)]
    async with opened(stage) as engine:
        interned = await intern(engine.catalog, an_order(stage))
        accepted = await enqueue(engine, interned, InputBatches(iter(batches), lambda batch: batch))
        stage.say(accepted.task_ids)


async def enqueue_keyed(stage: Stage) -> None:
    keys = [f"order-{stage.given['round']}-{n}" for n in range(2)]
    inputs = [an_input(stage, n) for n in range(2)]
    async with opened(stage) as engine:
        accepted = await enqueue(engine, await intern(engine.catalog, an_order(stage)), inputs, keys=keys)
        stage.say(accepted.task_ids)


async def enqueue_with_business(stage: Stage) -> None:
    """A row of the caller's own and the task that belongs to it, in the caller's transaction."""
    async with opened(stage) as engine:
        interned = await intern(engine.catalog, an_order(stage))
        async with engine.database.transaction() as session:
            await session.fetch("insert into shop_order (round) values ($1)", stage.given["round"])
            accepted = await enqueue_in(session, engine.catalog, interned, [an_input(stage)])
        stage.say(accepted.task_ids)


def an_action(stage: Stage) -> Action[..., Any]:
    async def charge(round: int, number: int) -> None: ...

    name, queue = f"act{stage.given['round']}", f"queue-{stage.given['round']}"
    return App("shop").action(name=name, queue=queue, retry={"base_backoff_secs": 1.0 + stage.given["round"]})(charge)


async def enqueue_one(stage: Stage) -> None:
    """As most people do: a client, one task, no key."""
    async with opened(stage) as engine:
        task = await Client.over(engine).enqueue(an_action(stage), round=stage.given["round"], number=0)
        stage.say([int(task.task_id)])


async def enqueue_one_keyed(stage: Stage) -> None:
    async with opened(stage) as engine:
        action = an_action(stage).options(key=f"order-{stage.given['round']}")
        task = await Client.over(engine).enqueue(action, round=stage.given["round"], number=0)
        stage.say([int(task.task_id)])


async def enqueue_copy(stage: Stage) -> None:
    async with opened(stage) as engine:
        changed = {"round": stage.given["round"], "number": 1}
        accepted, _ = await copy_task(engine, DEFAULT_TENANT_ID, stage.given["original"], changed, CopyOptions())
        stage.say(accepted.task_ids)
