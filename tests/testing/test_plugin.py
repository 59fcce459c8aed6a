"""A suite may mean something else by the short names; the plugin's own fixtures do not mind."""

from __future__ import annotations

import pytest

from holdfast.engine.engine import Engine
from holdfast.testing.factories import a_task


@pytest.fixture
def engine() -> str:
    """As suites that use SQLAlchemy call theirs."""
    return "sqlalchemy"


async def test_an_engine_of_somebody_elses_is_left_to_them(engine, harness, clock, holdfast_engine):
    task = await harness.enqueue(a_task())
    await clock.advance(seconds=60)
    lease = await harness.claim_one()
    assert (engine, lease.task_id) == ("sqlalchemy", task.task_id)
    assert isinstance(holdfast_engine, Engine)


async def test_short_names_mean_the_same_as_the_long_ones(
    harness, clock, holdfast_harness, holdfast_clock, holdfast_engine
):
    assert (harness, clock) == (holdfast_harness, holdfast_clock)
    assert harness.engine is holdfast_engine
