"""Declare the datasets that an app writes to, and list them.

A version is declared once and never changes. The first version of a dataset is current at once, because there are no
readers to disturb. Later versions are built next to it and cut over (`cutover`).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from difflib import get_close_matches

import msgspec

from holdfast.core.datasets.dataset import ColumnType, Dataset
from holdfast.errors import Conflict, Invalid, NotFound
from holdfast.store.database import NAME_TAKEN, Database, Session
from holdfast.store.sql.datasets import datasets as datasets_sql
from holdfast.store.sql.datasets import generations as generations_sql

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
    row = await datasets_sql.find_generation(database, tenant_id, dataset.name, dataset.version)
    if row is None:
        row = await _begin(database, tenant_id, dataset)
    columns = dict(zip(row.columns, map(ColumnType, row.types), strict=True))
    declared = (list(columns.items()), tuple(row.key), row.place)
    if declared != (list(dataset.columns.items()), dataset.key, dataset.schema):
        raise Conflict(
            f"Version {dataset.version} of {dataset.name} was declared with other columns, key or schema.",
            code="dataset_version_changed",
            advice=f"Give the changed dataset a new version: version={dataset.version + 1}.",
        )
    return Generation(row.generation_id, dataset)


async def _begin(database: Database, tenant_id: int, dataset: Dataset) -> datasets_sql.FindGenerationRow:
    if not await datasets_sql.schema_exists(database, dataset.schema):
        raise Invalid(
            f"There is no schema {dataset.schema} for {dataset.name}.",
            code="dataset_schema_missing",
            advice=f"Create it: `create schema {dataset.schema}`.",
        )
    try:
        async with database.transaction() as session:
            await datasets_sql.ensure_dataset(session, tenant_id, dataset.name, dataset.schema)
            known = await datasets_sql.lock_dataset(session, tenant_id, dataset.name)
            assert known is not None, "it was just created"
            identity = (tenant_id, dataset.name, dataset.version)
            if (row := await datasets_sql.find_generation(session, *identity)) is not None:
                return row
            await _make(session, tenant_id, known, dataset)
            made = await datasets_sql.find_generation(session, *identity)
            assert made is not None, "it was just created"
            return made
    except NAME_TAKEN as error:
        raise Conflict(
            f"{dataset.name} cannot be made in {dataset.schema}: {error}.",
            code="dataset_name_taken",
            advice="Give the dataset another name or schema.",
        ) from error


async def _make(session: Session, tenant_id: int, known: datasets_sql.LockDatasetRow, dataset: Dataset) -> None:
    columns, types = list(dataset.columns), [str(kind) for kind in dataset.columns.values()]
    shape = (columns, types, list(dataset.key))
    generation_id = await datasets_sql.add_generation(session, tenant_id, known.dataset_id, dataset.version, *shape)
    await datasets_sql.create_generation_tables(session, generation_id)
    if known.current_version is None:
        await generations_sql.cut_over(session, known.dataset_id, dataset.version, "", "the first version")
        await generations_sql.refresh_dataset_view(session, known.dataset_id, True)


async def add_builds(session: Session, generation: Generation, task_ids: Iterable[int]) -> None:
    """Register tasks or runs as builders of a generation, in the transaction that starts them."""
    ids = list(task_ids)
    if ids and not await generations_sql.add_builds(session, generation.generation_id, ids):
        dataset = generation.dataset
        raise Conflict(
            f"Version {dataset.version} of {dataset.name} takes no more rows.",
            code="dataset_not_open",
            advice=f"See `holdfast dataset show {dataset.name}`.",
        )


async def count_rows(database: Database, generation: Generation, partition: str | None = None) -> int:
    """Return how many committed rows a generation, or one partition of it, has."""
    return int(await generations_sql.count_rows(database, generation.generation_id, partition) or 0)


async def list_generations(database: Database, tenant_id: int, name: str | None = None) -> list[GenerationView]:
    """Return every generation of every dataset, or of one; `NotFound` if there is none with that name."""
    rows = await generations_sql.list_generations(database, tenant_id, name)
    if name is not None and not rows:
        names = sorted({row.name for row in await generations_sql.list_generations(database, tenant_id, None)})
        near = get_close_matches(name, names, n=1)
        advice = f"Did you mean {near[0]}?" if near else "See `holdfast dataset list`."
        raise NotFound(f"There is no dataset {name!r}.", code="dataset_not_found", advice=advice)
    return [_view(row) for row in rows]


async def recent_commits(database: Database, tenant_id: int, name: str, *, limit: int) -> list[CommitView]:
    """Return the last commits to a dataset, newest first."""
    return [
        CommitView(**row._asdict()) for row in await generations_sql.recent_commits(database, tenant_id, name, limit)
    ]


def _view(row: generations_sql.ListGenerationsRow) -> GenerationView:
    return GenerationView(
        name=row.name,
        version=row.version,
        state=STATES[row.state],
        rows=row.rows,
        unfinished=row.unfinished,
        failed=row.failed,
        view=f"{row.place}.{row.name}",
        table=f"{row.place}.{row.name}_v{row.version}",
        columns=dict(zip(row.columns, row.types, strict=True)),
        key=row.key,
        created_at=row.created_at,
        cut_over_at=row.cut_over_at,
        ended_at=row.ended_at,
        actor=row.actor,
        reason=row.reason,
    )
