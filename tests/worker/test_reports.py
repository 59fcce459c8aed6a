"""What a worker sends in one go is bounded, and what it hears concerns the attempts it asked about."""

from __future__ import annotations

import uuid

import pytest

from holdfast.authoring.app import App
from holdfast.core.tasks.outcome import Completed, Released
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.leases import Claimed, Report
from holdfast.engine.lifecycle.tasks.heartbeat import Beat
from holdfast.execution.running_attempt import AttemptPlan, RunningAttempt
from holdfast.store.catalog import Lane
from holdfast.worker.runtime.state import BATCH_MAX
from holdfast.worker.runtime.worker import Worker
from holdfast.worker.transport.database import BATCH_BYTES_MAX

app = App("reports")


@app.action
async def charge() -> None:
    pass


def a_report(outcome=None):
    return Report(1, 1, uuid.uuid4(), 1, 0, 0, outcome or Released())


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ([], 0),
        ([1], 1),
        ([BATCH_BYTES_MAX + 1], 1),
        ([BATCH_BYTES_MAX, 1], 1),
        ([BATCH_BYTES_MAX // 2] * 3, 2),
        ([0] * (BATCH_MAX + 1), BATCH_MAX),
    ],
)
async def test_a_batch_is_what_one_statement_can_carry(sizes, count, engine):
    state = Worker(engine, app.actions).state
    state.reports = [a_report(Completed(bytes(size))) for size in sizes]
    with state.sending() as batch:
        assert len(batch) == count


def a_held(attempt):
    claimed = Claimed(1, attempt, uuid.uuid4(), 1, 1, 0, 0, 1, None, None, b"{}", None)
    lane = Lane(1, charge.name, "default", "default")
    return RunningAttempt(claimed, AttemptPlan(charge, lane, RetryPolicy()), 10.0, 0.0)


async def test_news_of_an_ended_attempt_does_not_stop_the_next_one(engine):
    """The answer to a beat may arrive when the task is already in its next attempt, on the same worker."""
    worker = Worker(engine, app.actions)
    asked, current = a_held(1), a_held(2)
    worker.state.running[1] = current
    lost = Beat(renewed=frozenset(), lost=frozenset({1}), canceled=frozenset(), worker_state="active")
    worker.state.apply_heartbeat(lost, {1: asked})
    assert current.stop_reason is None
    worker.state.apply_heartbeat(lost, {1: current})
    assert current.stop_reason == "fenced"
