"""What the victims of the dataset sweep do: one verb each, on a dataset of the round's own."""

from __future__ import annotations

import uuid
from typing import Any

from tests.crash.opened import opened

from holdfast.core.datasets.dataset import Commit, Dataset, Mode, defined
from holdfast.core.tasks.outcome import Completed
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.datasets.cutover import CutoverRequest, cut_over, finish_rollbacks_once, roll_back
from holdfast.engine.datasets.declare import Generation, add_builds, declare
from holdfast.engine.datasets.stage import AttemptLease, StagedPart, open_part, stage_batch, sweep_stages_once
from holdfast.engine.engine import Engine
from holdfast.engine.leases import Report
from holdfast.engine.lifecycle.tasks.enqueue import EnqueueOrder, enqueue_in, intern
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.testing.crash import Stage

ACTION = "shop.ingest"
BY = CutoverRequest(actor="victim", reason="round")
BATCHES = ([(1, 10), (2, 20)], [(3, 30)])


def dataset_of(given: dict[str, Any], version: int = 1) -> Dataset:
    """Without a key, so that a row that comes twice shows."""
    return defined(f"orders_{given['round']}", version=version, columns={"order_id": "bigint", "cents": "bigint"})


def lease_of(given: dict[str, Any]) -> tuple[int, int, Any]:
    task_id, attempt, token, _policy_id = given["lease"]
    return task_id, attempt, uuid.UUID(token)


async def write(engine: Engine, given: dict[str, Any], generation: Generation) -> tuple[Commit, ...]:
    """Two batches appended, and a partition replaced."""
    lease, commits = AttemptLease(*lease_of(given)), []
    for number, (mode, batches) in enumerate(((Mode.APPEND, BATCHES), (Mode.REPLACE, [[(9, 90)]]))):
        part = StagedPart(lease, generation, mode, number, "nines" if mode is Mode.REPLACE else "")
        await open_part(engine.database, part)
        for batch in batches:
            await stage_batch(engine.database, part, batch)
        commits.append(Commit(generation_id=generation.generation_id, mode=mode, part=number, rows=part.rows))
    return tuple(commits)


async def report(engine: Engine, given: dict[str, Any], commits: tuple[Commit, ...]) -> bool:
    """As a worker settles a completion that carries datasets."""
    policy_id = given["lease"][3]
    done = Report(*lease_of(given), policy_id, 0, 0, Completed(b'"victim"', commits))
    async with engine.database.transaction() as session:
        return not (await settle(session, engine.catalog, [done])).refused


async def knows_policy(engine: Engine, given: dict[str, Any]) -> None:
    engine.database.tap, tap = None, engine.database.tap
    await engine.catalog.learn((), [given["lease"][3]])
    engine.database.tap = tap


async def declare_version(stage: Stage) -> None:
    async with opened(stage) as engine:
        await declare(engine.database, 1, dataset_of(stage.given))
        stage.say("declared")


async def stage_and_commit(stage: Stage) -> None:
    """The whole of an attempt's writing. Said again after an unknown answer, it is the report that is repeated."""
    async with opened(stage) as engine:
        await knows_policy(engine, stage.given)
        if "commits" not in stage.given:
            generation = Generation(stage.given["generation_id"], dataset_of(stage.given))
            commits = await write(engine, stage.given, generation)
            stage.given["commits"] = [(one.generation_id, str(one.mode), one.part, one.rows) for one in commits]
        stage.say(await report(engine, stage.given, commits_of(stage.given)))


def commits_of(given: dict[str, Any]) -> tuple[Commit, ...]:
    return tuple(
        Commit(generation_id=generation_id, mode=Mode(mode), part=part, rows=rows)
        for generation_id, mode, part, rows in given["commits"]
    )


async def cut_over_version(stage: Stage) -> None:
    async with opened(stage) as engine:
        await cut_over(engine.database, 1, dataset_of(stage.given).name, 2, BY)
        stage.say("cut over")


async def cut_over_with_completion(stage: Stage) -> None:
    async with opened(stage) as engine:
        await knows_policy(engine, stage.given)
        over = Commit(generation_id=stage.given["generation_id"], mode=Mode.CUT_OVER)
        stage.say(await report(engine, stage.given, (over,)))


async def roll_back_version(stage: Stage) -> None:
    async with opened(stage) as engine:
        await roll_back(engine.database, 1, dataset_of(stage.given).name, 2, BY)
        stage.say("rolled back")
        await finish_rollbacks_once(engine.database, engine.catalog, grace_seconds=0.0)


async def sweep(stage: Stage) -> None:
    async with opened(stage) as engine:
        await sweep_stages_once(engine.database)
        stage.say("swept")


async def build(stage: Stage) -> None:
    order = EnqueueOrder(tenant_id=1, queue="default", action=ACTION, policy=RetryPolicy())
    async with opened(stage) as engine:
        generation = Generation(stage.given["generation_id"], dataset_of(stage.given))
        interned = await intern(engine.catalog, order)
        async with engine.database.transaction() as session:
            accepted = await enqueue_in(session, engine.catalog, interned, [b"{}", b"{}"])
            await add_builds(session, generation, accepted.task_ids)
        stage.say(list(accepted.task_ids))
