"""Hands for tests of schedules: wait for a slot, see how slots fared, finish what they started."""

from __future__ import annotations

import pytest

from holdfast.core.tasks.outcome import Completed

HOUR = 3600.0


async def until_slot(harness, clock, *, late_seconds=1.0, name="hourly"):
    """Let time pass until just after the next slot."""
    view = await harness.schedules.view(name)
    await clock.advance(seconds=(view.next_at - view.at).total_seconds() + late_seconds)


async def fates(harness, name="hourly"):
    return [(slot.state, slot.cause) for slot in await harness.schedules.slots(name)]


async def finish(harness):
    """Run whatever is queued to its end."""
    for lease in await harness.claim(100):
        await harness.settle(lease, Completed(b"null"))


@pytest.fixture(autouse=True)
async def frozen(clock):
    await clock.freeze()
