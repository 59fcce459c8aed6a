"""The reaper ends what nobody can be running, and decides by the one rule."""

from __future__ import annotations

import pytest

from holdfast.core.outcome import Completed
from holdfast.core.states import TaskState
from holdfast.errors import LeaseLost
from holdfast.testing.factories import a_task


async def test_a_lost_worker_costs_one_loss_and_cannot_settle_late(dispatcher, clock):
    task = await dispatcher.enqueue(a_task(max_losses=2))
    lease = await dispatcher.claim_one(worker="first")

    await clock.advance(seconds=lease.seconds + 1)
    await dispatcher.reap_once()

    seen = await dispatcher.task(task.task_id)
    assert (seen.state, seen.loss_count) == (TaskState.QUEUED, 1)
    with pytest.raises(LeaseLost, match="queued"):
        await dispatcher.settle(lease, Completed(b"null"))
