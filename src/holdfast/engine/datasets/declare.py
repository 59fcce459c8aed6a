"""Declare the datasets that an app writes to, and list them.

A version is declared once and never changes. The first version of a dataset is current at once, because there are no
readers to disturb. Later versions are built next to it and cut over (`cutover`).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from difflib import get_close_matches
from typing import Any

import msgspec

from holdfast.core.datasets.dataset import ColumnType, Dataset
from holdfast.errors import Conflict, Invalid, NotFound
from holdfast.store.database import NAME_TAKEN, Database, Session
from holdfast.store.statements import sql

_ENSURE_DATASET = sql("ensure_dataset")
_SCHEMA_EXISTS = sql("schema_exists")
_LOCK_DATASET = sql("lock_dataset")
_FIND_GENERATION = sql("find_generation")
_ADD_GENERATION = sql("add_generation")
_CREATE_GENERATION_TABLES = sql("create_generation_tables")
_CUT_OVER = sql("cut_over")
_REFRESH_DATASET_VIEW = sql("refresh_dataset_view")
_ADD_BUILDS = sql("add_builds")
_COUNT_ROWS = sql("count_rows")
_LIST_GENERATIONS = sql("list_generations")
_RECENT_COMMITS = sql("recent_commits")

STATES = {"b": "building", "c": "current", "o": "superseded", "r": "rolled back", "d": "dropped"}


class Generation(msgspec.Struct, frozen=True):
    """A version of a dataset that is stored in the database."""

    generation_id: int
    dataset: Dataset


class GenerationView(msgspec.Struct, frozen=True, kw_only=True):
    """One generation, for display."""

    name: str
    version: int
    state: str
    rows: int
    unfinished: int
    failed: int
    view: str
    table: str
    columns: dict[str, str]
    key: list[str]
    created_at: datetime
    cut_over_at: datetime | None
    ended_at: datetime | None
    actor: str
    reason: str


class CommitView(msgspec.Struct, frozen=True, kw_only=True):
    """One commit to a dataset, for display."""

    task_id: str
    attempt: int
    version: int
    mode: str
    partition: str
    rows_given: int
    rows_added: int
    rows_removed: int
    committed_at: datetime


async def declare(database: Database, tenant_id: int, dataset: Dataset) -> Generation:
    """Find this version of a dataset or create it; `Conflict` if it was declared with other columns."""
    row = await database.fetchrow(_FIND_GENERATION, tenant_id, dataset.name, dataset.version)
    if row is None:
        row = await _begin(database, tenant_id, dataset)
    columns = dict(zip(row["columns"], map(ColumnType, row["types"]), strict=True))
    declared = (list(columns.items()), tuple(row["key"]), row["place"])
    if declared != (list(dataset.columns.items()), dataset.key, dataset.schema):
        raise Conflict(
            f"Version {dataset.version} of {dataset.name} was declared with other columns, key or schema.",
            code="dataset_version_changed",
            advice=f"Give the changed dataset a new version: version={dataset.version + 1}.",
        )
    return Generation(row["generation_id"], dataset)


async def _begin(database: Database, tenant_id: int, dataset: Dataset) -> Any:
    if not await database.fetchval(_SCHEMA_EXISTS, dataset.schema):
        raise Invalid(
            f"There is no schema {dataset.schema} for {dataset.name}.",
            code="dataset_schema_missing",
            advice=f"Create it: `create schema {dataset.schema}`.",
        )
    try:
        async with database.transaction() as session:
            await session.fetch(_ENSURE_DATASET, tenant_id, dataset.name, dataset.schema)
            known = await session.fetchrow(_LOCK_DATASET, tenant_id, dataset.name)
            identity = (tenant_id, dataset.name, dataset.version)
            if (row := await session.fetchrow(_FIND_GENERATION, *identity)) is not None:
                return row
            await _make(session, tenant_id, known, dataset)
            return await session.fetchrow(_FIND_GENERATION, *identity)
    except NAME_TAKEN as error:
        raise Conflict(
            f"{dataset.name} cannot be made in {dataset.schema}: {error}.",
            code="dataset_name_taken",
            advice="Give the dataset another name or schema.",
        ) from error


async def _make(session: Session, tenant_id: int, known: Any, dataset: Dataset) -> None:
    columns, types = list(dataset.columns), [str(kind) for kind in dataset.columns.values()]
    shape = (columns, types, list(dataset.key))
    generation_id = await session.fetchval(_ADD_GENERATION, tenant_id, known["dataset_id"], dataset.version, *shape)
    await session.fetch(_CREATE_GENERATION_TABLES, generation_id)
    if known["current_version"] is None:
        await session.fetch(_CUT_OVER, known["dataset_id"], dataset.version, "", "the first version")
        await session.fetch(_REFRESH_DATASET_VIEW, known["dataset_id"], True)


async def add_builds(session: Session, generation: Generation, task_ids: Iterable[int]) -> None:
    """Register tasks or runs as builders of a generation, in the transaction that starts them."""
    ids = list(task_ids)
    if ids and not await session.fetch(_ADD_BUILDS, generation.generation_id, ids):
        dataset = generation.dataset
        raise Conflict(
            f"Version {dataset.version} of {dataset.name} takes no more rows.",
            code="dataset_not_open",
            advice=f"See `holdfast dataset show {dataset.name}`.",
        )


async def count_rows(database: Database, generation: Generation, partition: str | None = None) -> int:
    """Return how many committed rows a generation, or one partition of it, has."""
    return int(await database.fetchval(_COUNT_ROWS, generation.generation_id, partition) or 0)


async def list_generations(database: Database, tenant_id: int, name: str | None = None) -> list[GenerationView]:
    """Return every generation of every dataset, or of one; `NotFound` if there is none with that name."""
    rows = await database.fetch(_LIST_GENERATIONS, tenant_id, name)
    if name is not None and not rows:
        names = sorted({row["name"] for row in await database.fetch(_LIST_GENERATIONS, tenant_id, None)})
        near = get_close_matches(name, names, n=1)
        advice = f"Did you mean {near[0]}?" if near else "See `holdfast dataset list`."
        raise NotFound(f"There is no dataset {name!r}.", code="dataset_not_found", advice=advice)
    return [_view(row) for row in rows]


async def recent_commits(database: Database, tenant_id: int, name: str, *, limit: int) -> list[CommitView]:
    """Return the last commits to a dataset, newest first."""
    return [CommitView(**dict(row)) for row in await database.fetch(_RECENT_COMMITS, tenant_id, name, limit)]


def _view(row: Any) -> GenerationView:
    return GenerationView(
        name=row["name"],
        version=row["version"],
        state=STATES[row["state"]],
        rows=row["rows"],
        unfinished=row["unfinished"],
        failed=row["failed"],
        view=f"{row['place']}.{row['name']}",
        table=f"{row['place']}.{row['name']}_v{row['version']}",
        columns=dict(zip(row["columns"], row["types"], strict=True)),
        key=row["key"],
        created_at=row["created_at"],
        cut_over_at=row["cut_over_at"],
        ended_at=row["ended_at"],
        actor=row["actor"],
        reason=row["reason"],
    )
