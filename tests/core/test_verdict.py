"""How a run ends and stands, as the specification says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.verdicts import RunCounts, standing, verdict

from holdfast.core.flows.run_state import (
    RUN_REDRIVE_TRANSITIONS,
    RUN_TERMINAL,
    RUN_TRANSITIONS,
    RunState,
)
from holdfast.core.tasks.states import TaskState


def counted(retrying=0, **tasks):
    return RunCounts.of({TaskState(state): count for state, count in tasks.items()}, retrying=retrying)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (counted(completed=3), "completed"),
        (counted(completed=2, failed=1), "failed"),
        (counted(upstream_failed=2, skipped=1, canceled=1), "completed"),
        (counted(failed=1, upstream_failed=9), "failed"),
        (counted(completed=2, blocked=1), None),
        (counted(completed=2, queued=1), None),
        (counted(completed=2, running=1, failed=1), None),
        (counted(completed=2, failed=1, retrying=1), None),
        (counted(failed=2, retrying=1), None),
    ],
)
def test_a_run_fails_only_if_a_task_failed(counts, expected):
    assert verdict(counts) == expected


def test_a_canceled_run_is_canceled_once_its_tasks_stopped():
    assert verdict(counted(running=1, canceled=2), is_canceled=True) is None
    assert verdict(counted(completed=1, failed=1, canceled=2), is_canceled=True) is RunState.CANCELED


@pytest.mark.parametrize(
    ("counts", "flags", "expected"),
    [
        (counted(blocked=1, queued=1), {}, "queued"),
        (counted(blocked=1, running=1), {}, "running"),
        (counted(queued=1, completed=1), {}, "running"),
        (counted(failed=1, retrying=1), {}, "running"),
        (counted(failed=1, running=1), {}, "blocked"),
        (counted(failed=1, running=1), {"is_paused": True}, "paused"),
        (counted(failed=1, running=1), {"is_paused": True, "is_canceled": True}, "running"),
        (counted(failed=1), {"is_paused": True}, "failed"),
        (counted(completed=1), {}, "completed"),
    ],
)
def test_a_run_stands_as_its_tasks_do(counts, flags, expected):
    assert standing(counts, **flags) == expected


TASKS = st.dictionaries(st.sampled_from(TaskState), st.integers(0, 3))


@given(TASKS, st.integers(0, 3), st.booleans(), st.booleans())
def test_a_run_is_over_exactly_when_nothing_is_pending(tasks, retrying, is_canceled, is_paused):
    retrying = min(retrying, tasks.get(TaskState.FAILED, 0))
    counts = RunCounts.of(tasks, retrying=retrying)
    pending = retrying + sum(tasks.get(TaskState(state), 0) for state in ("blocked", "queued", "running"))
    assert (verdict(counts, is_canceled=is_canceled) is None) == bool(pending)
    assert (standing(counts, is_canceled=is_canceled, is_paused=is_paused) in RUN_TERMINAL) == (not pending)


def test_only_a_redrive_reopens_a_run():
    assert set(RUN_TRANSITIONS) == set(RunState)
    for state in RUN_TERMINAL:
        assert RUN_TRANSITIONS[state] == RUN_REDRIVE_TRANSITIONS.get(state, frozenset())
    for state, targets in RUN_REDRIVE_TRANSITIONS.items():
        assert targets <= RUN_TRANSITIONS[state]


def test_a_failed_task_keeps_its_run_from_completing():
    assert RunState.COMPLETED not in RUN_TRANSITIONS[RunState.BLOCKED]
    assert not any(state in RUN_TRANSITIONS[state] for state in RunState)
