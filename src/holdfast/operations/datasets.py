"""Operations on datasets: their contents, and which version readers see."""

from __future__ import annotations

import msgspec

from holdfast.core.identity.access import Access
from holdfast.engine.datasets.declare import CommitView, GenerationView
from holdfast.engine.use_cases import datasets as dataset_use_cases
from holdfast.errors import Invalid
from holdfast.operations.context import OperationContext
from holdfast.operations.operation import Request, operation
from holdfast.operations.paging import page_of
from holdfast.operations.shared_types import ListNames

COMMITS_SHOWN = 10
COMMITS_MAX = 1_000


class GenerationPage(msgspec.Struct, frozen=True, kw_only=True):
    generations: list[GenerationView]
    next: str | None


class ShowDataset(Request, frozen=True, kw_only=True):
    """A dataset, and how many of its last commits to show."""

    name: str
    commits: int = COMMITS_SHOWN


class DatasetShown(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    generations: list[GenerationView]
    commits: list[CommitView]


class CutOver(Request, frozen=True, kw_only=True):
    name: str
    version: int
    force: bool = False
    reason: str = ""


class RollBack(Request, frozen=True, kw_only=True):
    name: str
    version: int
    keep: bool = False
    reason: str = ""


class DropVersion(Request, frozen=True, kw_only=True):
    name: str
    version: int
    reason: str = ""


class VersionChanged(msgspec.Struct, frozen=True, kw_only=True):
    """`current` is the version that readers see now, for example after a rollback."""

    name: str
    version: int
    is_changed: bool = True
    current: int | None = None


@operation("dataset.list", "GET /api/v1/datasets", Access.VIEWER)
async def list_datasets(context: OperationContext, request: ListNames) -> GenerationPage:
    """Lists datasets with their versions."""
    rows = await context.client.datasets.generations()
    page, following = page_of(rows, lambda row: f"{row.name}:{row.version}", request.after, request.limit)
    return GenerationPage(generations=page, next=following)


@operation("dataset.show", "GET /api/v1/datasets/{name}", Access.VIEWER)
async def show_dataset(context: OperationContext, request: ShowDataset) -> DatasetShown:
    """Shows one dataset: its versions, columns and last commits."""
    if not 0 <= request.commits <= COMMITS_MAX:
        raise Invalid(f"Commits are shown from 0 to {COMMITS_MAX}, not {request.commits}.", code="invalid_limit")
    generations = await context.client.datasets.generations(request.name)
    commits = await context.client.datasets.commits(request.name, limit=request.commits)
    return DatasetShown(name=request.name, generations=generations, commits=commits)


@operation("dataset.cutover", "POST /api/v1/datasets/{name}/versions/{version}/cutover", Access.OPERATOR)
async def cut_over(context: OperationContext, request: CutOver) -> VersionChanged:
    """Switches readers to a version, atomically."""
    is_changed = await dataset_use_cases.cut_over(
        context.engine,
        request.name,
        request.version,
        actor=context.actor,
        reason=request.reason,
        is_forced=request.force,
    )
    return VersionChanged(name=request.name, version=request.version, is_changed=is_changed, current=request.version)


@operation("dataset.rollback", "POST /api/v1/datasets/{name}/versions/{version}/rollback", Access.OPERATOR)
async def roll_back(context: OperationContext, request: RollBack) -> VersionChanged:
    """Takes a version out of use and cancels its unfinished tasks."""
    shown = await dataset_use_cases.roll_back(
        context.engine, request.name, request.version, actor=context.actor, reason=request.reason, is_kept=request.keep
    )
    return VersionChanged(name=request.name, version=request.version, current=shown)


@operation("dataset.drop", "POST /api/v1/datasets/{name}/versions/{version}/drop", Access.OPERATOR)
async def drop_version(context: OperationContext, request: DropVersion) -> VersionChanged:
    """Drops the tables of a version that is superseded, or was rolled back and kept."""
    await dataset_use_cases.drop(
        context.engine, request.name, request.version, actor=context.actor, reason=request.reason
    )
    return VersionChanged(name=request.name, version=request.version)


OPERATIONS = (list_datasets, show_dataset, cut_over, roll_back, drop_version)
