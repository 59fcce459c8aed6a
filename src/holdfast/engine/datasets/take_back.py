"""Take back: rows without a key go when the tasks that appended them run again, or others in their place.

What is to go is written down when a run is reset, in the same transaction. A task takes its share with its completion
(see `commit`), so that readers see the old rows or the new ones; what nobody brings anew goes after the run completed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from holdfast.store.database import Database, Session
from holdfast.store.statements import sql

_OWE_ROWS = sql("owe_rows")
_OWED_ROWS = sql("owed_rows")
_LOCK_GENERATIONS = sql("lock_generations")
_REMOVE_OWED_ROWS = sql("remove_owed_rows")

TAKE_BATCH = 100


async def owe_rows(
    session: Session, tenant_id: int, run_id: int, generation: int, *, nodes: Iterable[int], replaced: Sequence[int]
) -> None:
    """Write down what nodes that are reset, and runs that are replaced, have appended. Under the lock of the run."""
    await session.fetch(_OWE_ROWS, run_id, tenant_id, list(nodes), list(replaced), generation)


async def take_back_once(database: Database) -> int:
    """Take back what runs still owe that completed since; answers of how many tasks.

    A run that failed again, or is under way, keeps what it had.
    """
    owed = await database.fetch(_OWED_ROWS, TAKE_BATCH)
    for generation_id, rows in groupby(owed, key=lambda row: row["generation_id"]):
        async with database.transaction() as session:
            await session.fetch(_LOCK_GENERATIONS, [generation_id], [])
            await session.fetch(_REMOVE_OWED_ROWS, generation_id, [row["task_id"] for row in rows])
    return len(owed)
