"""Delete appended rows without a key when the tasks that wrote them run again or are replaced.

The rows to delete are recorded when a run is reset, in the same transaction. A task deletes its share with its
completion (see `commit`), so that readers see the old rows or the new ones. Rows that no task writes again are deleted
after the run has completed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from holdfast.store.database import Database, Session
from holdfast.store.sql.datasets import datasets as datasets_sql

TAKE_BATCH = 100


async def owe_rows(
    session: Session, tenant_id: int, run_id: int, generation: int, *, nodes: Iterable[int], replaced: Sequence[int]
) -> None:
    """Record the rows that reset nodes and replaced runs have appended. Call it under the lock of the run."""
    await datasets_sql.owe_rows(session, run_id, tenant_id, list(nodes), list(replaced), generation)


async def take_back_once(database: Database) -> int:
    """Delete the recorded rows of runs that have completed since. Return the number of tasks concerned.

    A run that failed again or is still running keeps its rows.
    """
    owed = await datasets_sql.owed_rows(database, TAKE_BATCH)
    for generation_id, rows in groupby(owed, key=lambda row: row.generation_id):
        async with database.transaction() as session:
            await datasets_sql.lock_generations(session, [generation_id], [])
            await datasets_sql.remove_owed_rows(session, generation_id, [row.task_id for row in rows])
    return len(owed)
