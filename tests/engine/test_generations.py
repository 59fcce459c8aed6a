"""A task that is run again begins a new life; its history keeps them apart."""

from __future__ import annotations

from holdfast.core.tasks.outcome import Completed
from holdfast.testing.factories import a_failed_task


async def test_a_revived_task_counts_only_what_its_new_generation_spent(harness):
    task_id = await a_failed_task(harness)
    await harness.redrive(task_id)
    await harness.settle(await harness.claim_one(), Completed(b"null"))

    row = await harness.task(task_id)
    assert (row.state, row.generation, row.retry_count) == ("completed", 2, 0)
