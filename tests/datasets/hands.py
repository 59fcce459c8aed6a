"""Datasets by hand: a version to write to, attempts that stage, and a look at what readers see."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.core.datasets.dataset import Commit, Dataset, Mode, defined
from holdfast.core.datasets.rows import RowEncoder
from holdfast.core.tasks.outcome import Completed
from holdfast.engine.datasets.declare import Generation, declare
from holdfast.engine.datasets.stage import AttemptLease, StagedPart, open_part, stage_batch
from holdfast.engine.engine import Engine
from holdfast.testing.engine_harness import HeldLease

COLUMNS = {"order_id": "bigint", "cents": "bigint"}


def orders(version: int = 1, *, key: Any = "order_id", columns: Any = None, **options: Any) -> Dataset:
    return defined("orders", version=version, columns=columns or COLUMNS, key=key, **options)


async def declared(engine: Engine, dataset: Dataset | None = None) -> Generation:
    return await declare(engine.database, 1, dataset or orders())


def rows(*order_ids: int, cents: int = 100) -> list[dict[str, int]]:
    return [{"order_id": one, "cents": cents} for one in order_ids]


async def staged(
    engine: Engine,
    lease: HeldLease,
    generation: Generation,
    given: Iterable[Any],
    *,
    mode: str = "append",
    partition: str = "",
    number: int = 0,
) -> Commit:
    """Stage rows as a running attempt does; answers the commit that its completion would carry."""
    who = AttemptLease(lease.claimed.task_id, lease.attempt, lease.token)
    part = StagedPart(who, generation, Mode(mode), number, partition)
    await open_part(engine.database, part)
    for batch in RowEncoder(generation.dataset).batches(given):
        await stage_batch(engine.database, part, batch)
    return Commit(generation_id=generation.generation_id, mode=part.mode, part=number, rows=part.rows)


def completed(*commits: Commit) -> Completed:
    return Completed(b"null", commits)


async def seen(engine: Engine, name: str = "orders") -> list[tuple[Any, ...]]:
    """What a reader of the view sees."""
    return [tuple(row) for row in await engine.database.fetch(f"select * from holdfast_data.{name} order by 1, 2")]


async def stages(engine: Engine, table: str = "orders_v1_staged") -> tuple[int, int]:
    """How many parts are staged, and how many rows."""
    parts = await engine.database.fetchval("select count(*) from holdfast.dataset_stage")
    return parts, await engine.database.fetchval(f"select count(*) from holdfast_data.{table}")
