"""Which leases of ended attempts a beat keeps."""

from __future__ import annotations

import pytest

from holdfast.core.tasks.outcome import Completed
from holdfast.engine.leases import Report
from holdfast.worker.runtime import heartbeat_thread
from holdfast.worker.runtime.heartbeat_thread import UNSETTLED_SECONDS_MAX, UnsettledLeases

BEAT = 3.0


def a_report(task_id, *, leased_at=0.0):
    return Report(task_id, 1, f"token {task_id}", 1, 0, 0, Completed(b"null"), leased_at=leased_at)


@pytest.fixture
def ended():
    return []


@pytest.fixture
def due(ended):
    """What is due at a time; all of it is then kept, unless `answers` says which."""
    leases = UnsettledLeases()

    def at(now, *, answers=None):
        found = leases.due(ended, now, young_seconds=BEAT)
        leases.renewed(found if answers is None else answers, now)
        return set(found)

    return at


def test_what_ended_a_moment_ago_is_left_alone(ended, due):
    ended[:] = [a_report(1, leased_at=2.0), a_report(2)]
    assert due(4.0) == {2}


def test_what_is_not_settled_is_kept_at_every_beat(ended, due):
    ended[:] = [a_report(1)]
    assert [due(now) for now in (3.0, 4.0, 6.0, 9.0)] == [{1}, set(), {1}, {1}]
    ended.clear()
    assert due(12.0) == set()


def test_what_could_not_be_kept_is_tried_again(ended, due):
    ended[:] = [a_report(1), a_report(2)]
    assert due(3.0, answers=[2, 77]) == {1, 2}
    assert due(4.0) == {1}


def test_what_is_not_settled_for_very_long_is_given_up(ended, due):
    ended[:] = [a_report(1)]
    assert due(3.0) == {1}
    assert due(2.0 + UNSETTLED_SECONDS_MAX) == {1}
    assert due(5.0 + UNSETTLED_SECONDS_MAX) == set()


def test_many_have_their_turns(ended, due, monkeypatch):
    monkeypatch.setattr(heartbeat_thread, "UNSETTLED_MAX", 2)
    ended[:] = [a_report(n) for n in range(5)]
    assert [due(now) for now in (3.0, 4.0, 5.0, 5.5)] == [{0, 1}, {2, 3}, {4}, set()]
