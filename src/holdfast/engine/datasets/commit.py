"""Commit the dataset writes of completed attempts in the transaction that accepts their completion.

Generations are locked first, then the lease. Commits to one generation wait for one another, and while they wait,
heartbeats can still renew their leases. Each report has its own savepoint: one that cannot be committed becomes a
failed attempt with a code, and nothing of it is stored. Tasks without datasets skip this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.datasets.dataset import (
    Commit,
    Mode,
    builds_unfinished,
    busy,
    key_taken,
    rolled_back,
    stage_missing,
    superseded,
    view_in_use,
)
from holdfast.core.tasks.failure import Failure
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.datasets.cutover import CutoverRequest, cut_over_in
from holdfast.engine.leases import Report
from holdfast.store.database import KEY_TAKEN, LOCK_TIMEOUT, STILL_USED, Session
from holdfast.store.sql.datasets import datasets as datasets_sql

_OPEN = ("b", "c")
"""States in which a generation accepts rows."""


class _CommitRefused(Exception):
    """A report cannot be committed, and why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


async def lock_generations(session: Session, reports: Sequence[Report]) -> dict[int, Any]:
    """Lock everything that the reports change: datasets, then generations, each in order of id. Tasks are locked
    afterwards."""
    commits = [commit for report in reports for commit in _commits(report)]
    changed = [commit.generation_id for commit in commits if commit.mode is Mode.CUT_OVER]
    datasets = [row[0] for row in await datasets_sql.lock_datasets(session, changed)] if changed else []
    asked = sorted({commit.generation_id for commit in commits})
    return {row.generation_id: row for row in await datasets_sql.lock_generations(session, asked, datasets)}


async def commit_datasets(session: Session, reports: Sequence[Report], locked: Mapping[int, Any]) -> list[Report]:
    """Commit the staged rows of completed attempts; reports that cannot be committed are returned as failed.

    The caller has locked all their tasks and the generations.
    """
    settled = []
    for report in reports:
        held = await datasets_sql.lock_fence(session, *_lease(report)) if _commits(report) else None
        if held is None:
            # Nothing to commit, or the report is stale or repeated: the settling statement decides which.
            settled.append(report)
            continue
        failure = await _commit(session, report, held, locked)
        settled.append(report if failure is None else msgspec.structs.replace(report, outcome=Failed(failure)))
    return settled


def _lease(report: Report) -> tuple[int, int, Any]:
    return (report.task_id, report.attempt, report.lease_token)


def _commits(report: Report) -> tuple[Commit, ...]:
    return report.outcome.commits if type(report.outcome) is Completed else ()


async def _commit(
    session: Session, report: Report, held: datasets_sql.LockFenceRow, locked: Mapping[int, Any]
) -> Failure | None:
    """Commit all parts of one report, or none; return the reason for none."""
    name, touched = "", set[tuple[int, str]]()
    try:
        async with session.transaction():
            for commit in _commits(report):
                generation = locked.get(commit.generation_id)
                if generation is None or generation.tenant_id != held.tenant_id:
                    raise _CommitRefused(Failure(code="dataset_not_found", message="There is no such dataset."))
                name = generation.name
                if commit.mode is Mode.CUT_OVER:
                    await _cut_over(session, report, held, commit, generation)
                else:
                    await _move(session, report, held, commit, generation, touched)
    except _CommitRefused as refused:
        return refused.failure
    except KEY_TAKEN as error:
        return key_taken(name, str(error.detail or error))
    except LOCK_TIMEOUT:
        return busy(name)
    except STILL_USED as error:
        return view_in_use(name, str(error.detail or error))
    return None


async def _move(
    session: Session,
    report: Report,
    held: datasets_sql.LockFenceRow,
    commit: Commit,
    generation: datasets_sql.LockGenerationsRow,
    touched: set[tuple[int, str]],
) -> None:
    """Move one part into its generation and record the commit."""
    name, version, generation_id = generation.name, generation.version, commit.generation_id
    if generation.state not in _OPEN:
        raise _CommitRefused((superseded if generation.state == "o" else rolled_back)(name, version))
    here = (report.task_id, report.lease_token, commit.part)
    stage = await datasets_sql.take_stage(session, *here, generation_id, commit.rows)
    if stage is None:
        raise _CommitRefused(stage_missing(name, commit.rows))
    mode, partition = stage
    taken_back = 0
    # A task of a run may replace others: items that its node dropped, or a node of a replaced run.
    may_be_again = held.generation > 1 or held.run_id is not None
    is_again = may_be_again and (generation_id, partition) not in touched
    if is_again and not generation.is_keyed:
        # A task that runs again writes its rows again. Without a key its earlier rows must be deleted, in whatever
        # partition they are.
        taken_back = await datasets_sql.remove_appended_rows(session, generation_id, partition, report.task_id)
    touched.add((generation_id, partition))
    staged, removed, added = await datasets_sql.move_staged(session, generation_id, *here, partition, mode)
    if staged != commit.rows:
        raise _CommitRefused(stage_missing(name, commit.rows))
    what = (report.task_id, report.attempt, commit.part, generation_id, mode, partition)
    assert await datasets_sql.add_commit(session, *what, staged, added, removed + taken_back)


async def _cut_over(
    session: Session, report: Report, held: datasets_sql.LockFenceRow, commit: Commit, generation: Any
) -> None:
    """Make a generation current with the completion of the task that requested it."""
    name, version = generation.name, generation.version
    if generation.state == "c":
        return
    if generation.state not in ("b", "o"):
        raise _CommitRefused(rolled_back(name, version))
    asking = CutoverRequest(task_id=report.task_id, run_id=held.run_id, actor=f"task:{report.task_id}", reason="")
    left = await cut_over_in(session, generation, asking, is_forced=commit.is_forced)
    if left is not None:
        raise _CommitRefused(builds_unfinished(name, version, *left))
