"""A run folded from its events: by the order in which things happened to a node, not the order of arrival."""

from __future__ import annotations

import pytest
from tests.flow.run_replay import Replay


def test_what_happened_later_wins_whenever_it_arrives():
    replay = Replay(1)
    replay.of_node("task.started", 0, 1, order=9)
    replay.of_node("task.queued", 0, 0, order=8)
    assert (replay.states, replay.attempts) == (["running"], [1])


def test_kinds_that_move_nothing_are_passed_over():
    replay = Replay(1)
    replay.of_node("task.lost", 0, 3, order=5)
    replay.of_run("dead_letter.opened", order=5)
    assert (replay.states, replay.attempts, replay.run_state) == (["blocked"], [0], "queued")


@pytest.mark.parametrize("kind", ["execution.canceling", "execution.canceled"])
def test_a_cancel_ends_what_is_blocked_and_nothing_else(kind):
    replay = Replay(3)
    replay.of_node("task.started", 0, 1, order=1)
    replay.of_node("task.completed", 1, 1, order=2)
    replay.of_run(kind, order=3)
    assert replay.states == ["running", "completed", "canceled"]


def test_a_reset_node_is_blocked_until_it_goes_again():
    replay = Replay(1)
    replay.of_node("task.failed", 0, 1, order=1)
    replay.of_run("execution.redriven", order=2)
    replay.of_node("task.revived", 0, 1, order=3)
    assert (replay.states, replay.run_state) == (["blocked"], "queued")
    replay.of_node("task.queued", 0, 1, order=4)
    assert replay.states == ["queued"]
