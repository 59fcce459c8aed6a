"""The tables of states are total, closed and say what the specification says."""

from __future__ import annotations

import pytest

from holdfast.core.tasks.states import (
    ATTEMPT_CODES,
    ATTEMPT_TRANSITIONS,
    LIVE_TRANSITIONS,
    REDRIVE_TRANSITIONS,
    RETRYING_TRANSITIONS,
    TASK_CODES,
    TASK_TRANSITIONS,
    TERMINAL,
    AttemptState,
    LiveState,
    TaskState,
    can_move,
    diagram,
    is_terminal,
    label,
    logical_state,
)

SPECIFIED = {
    "blocked": {"queued", "skipped", "upstream_failed", "canceled"},
    "queued": {"running", "canceled"},
    "running": {"completed", "failed", "canceled", "queued"},
    "failed": {"queued", "canceled", "blocked"},
    "completed": {"blocked"},
    "skipped": {"blocked"},
    "upstream_failed": {"blocked"},
    "canceled": set(),
}


@pytest.mark.parametrize("from_", TaskState)
@pytest.mark.parametrize("to", TaskState)
def test_a_task_moves_exactly_as_specified(from_, to):
    assert can_move(from_, to) == (to.value in SPECIFIED[from_.value])


def test_every_state_has_its_row():
    assert set(TASK_TRANSITIONS) == set(TaskState)
    assert set(ATTEMPT_TRANSITIONS) == set(AttemptState)
    assert set(LIVE_TRANSITIONS) == set(LiveState)


def test_nothing_queued_fails_without_an_attempt():
    assert not can_move(TaskState.QUEUED, TaskState.FAILED)


def test_only_a_redrive_leaves_a_terminal_state():
    for state in TERMINAL:
        revivals = REDRIVE_TRANSITIONS.get(state, frozenset())
        usual = RETRYING_TRANSITIONS if state is TaskState.FAILED else frozenset()
        assert TASK_TRANSITIONS[state] == revivals | usual


def test_a_failed_task_is_terminal_only_without_a_retry():
    assert is_terminal(TaskState.FAILED)
    assert not is_terminal(TaskState.FAILED, is_retrying=True)
    assert [label(TaskState.FAILED, is_retrying=waits) for waits in (True, False)] == ["retrying", "failed"]


def test_an_attempt_ends_once():
    assert ATTEMPT_TRANSITIONS[AttemptState.RUNNING] == set(AttemptState) - {AttemptState.RUNNING}
    assert not any(to for state, to in ATTEMPT_TRANSITIONS.items() if state is not AttemptState.RUNNING)


def test_every_ended_attempt_has_its_own_letter():
    assert set(ATTEMPT_CODES) == set(AttemptState) - {AttemptState.RUNNING}
    assert sorted(ATTEMPT_CODES.values()) == sorted("cftlxe")


def test_a_live_row_moves_along_eight_ways():
    ways = {f"{from_}{to}" for from_, targets in LIVE_TRANSITIONS.items() for to in targets}
    assert ways == {"qr", "qv", "vr", "vq", "vw", "rq", "rw", "wq"}


@pytest.mark.parametrize("is_retrying", [True, False])
def test_every_live_move_is_a_logical_move_or_none(is_retrying):
    for from_, targets in LIVE_TRANSITIONS.items():
        for to in targets:
            before = logical_state(from_, is_retrying=is_retrying)
            after = logical_state(to, is_retrying=is_retrying)
            # A reservation that nobody attached to leaves an attempt: it passes through running in one statement.
            is_lost_reservation = from_ is LiveState.RESERVED and can_move(TaskState.RUNNING, after)
            assert before is after or can_move(before, after) or is_lost_reservation


def test_every_letter_has_a_logical_state():
    assert {LiveState(letter) for letter in TASK_CODES} == set(LiveState)
    assert logical_state(LiveState.WAITING, is_retrying=True) is TaskState.FAILED
    assert logical_state(LiveState.WAITING) is TaskState.QUEUED


def test_the_diagram_draws_every_transition():
    drawn = diagram()
    for from_, targets in TASK_TRANSITIONS.items():
        for to in targets:
            assert f"    {from_} --> {to}" in drawn
