"""A campaign's next step follows from its counts alone."""

from __future__ import annotations

from itertools import pairwise

import pytest

from holdfast.core.dead_letters.campaign import TRANSITIONS, CampaignCounts, CampaignState, is_newer, newest, next_step

S = CampaignState


def step(**changes):
    usual = {
        "state": S.CANARY, "canary": 5, "at_once": 100, "left": 1000, "outstanding": 0, "released": 0, "succeeded": 0,
        "returned": 0, "failed": 0,
    }  # fmt: skip
    found = next_step(CampaignCounts(**(usual | changes)))
    return found.state, found.release


CASES = {
    "the canary goes first": ({}, (S.CANARY, 5)),
    "a small group is a canary of its own": ({"left": 3}, (S.CANARY, 3)),
    "the canary is waited for": ({"released": 5, "outstanding": 2, "succeeded": 3}, (S.CANARY, 0)),
    "after it the ramp begins": ({"released": 5, "succeeded": 5}, (S.RAMP, 5)),
    "a canary of which nothing succeeded stops": ({"released": 5}, (S.STOPPED, 0)),
    "as many at once as succeeded": ({"state": S.RAMP, "succeeded": 40, "outstanding": 10}, (S.RAMP, 30)),
    "but never more than allowed": ({"state": S.RAMP, "succeeded": 4000, "outstanding": 90}, (S.RAMP, 10)),
    "nor more than there are": ({"state": S.RAMP, "succeeded": 40, "left": 7}, (S.RAMP, 7)),
    "a full window waits": ({"state": S.RAMP, "succeeded": 40, "outstanding": 40}, (S.RAMP, 0)),
    "the same fault stops the ramp": ({"state": S.RAMP, "succeeded": 999, "returned": 1}, (S.STOPPED, 0)),
    "the same fault stops the canary": ({"released": 5, "outstanding": 4, "returned": 1}, (S.STOPPED, 0)),
    "a few other faults do not": ({"state": S.RAMP, "succeeded": 80, "failed": 20}, (S.RAMP, 80)),
    "too many do": ({"state": S.RAMP, "succeeded": 80, "failed": 21}, (S.STOPPED, 0)),
    "the last ones are waited for": ({"state": S.RAMP, "left": 0, "outstanding": 2}, (S.RAMP, 0)),
    "then it is complete": ({"state": S.RAMP, "left": 0, "succeeded": 9}, (S.COMPLETED, 0)),
    "the last one may still stop it": ({"state": S.RAMP, "left": 0, "returned": 1}, (S.STOPPED, 0)),
    "a paused queue is waited for": ({"is_paused": True}, (S.CANARY, 0)),
    "a closed gate is waited for": ({"state": S.AWAITING_VERSION, "is_gate_open": False}, (S.AWAITING_VERSION, 0)),
    "an open gate lets the canary go": ({"state": S.AWAITING_VERSION}, (S.CANARY, 5)),
    "without approval nothing goes": ({"state": S.AWAITING_APPROVAL}, (S.AWAITING_APPROVAL, 0)),
    "what stopped stays": ({"state": S.STOPPED}, (S.STOPPED, 0)),
    "what was aborted stays": ({"state": S.ABORTED}, (S.ABORTED, 0)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_next_step(case):
    changes, expected = CASES[case]
    assert step(**changes) == expected


@pytest.mark.parametrize("case", CASES)
def test_a_step_goes_along_the_table(case):
    changes, (to, _) = CASES[case]
    state = changes.get("state", S.CANARY)
    assert to is state or to in TRANSITIONS[state]


def test_the_pace_doubles_with_success():
    done, paces = 5, []
    for _ in range(5):
        _, release = step(state=S.RAMP, succeeded=done)
        paces.append(release)
        done += release
    assert paces == [5, 10, 20, 40, 80]


ORDER = ["", "0.9", "1.0rc1", "1.0", "1.0.1", "1.2", "1.10", "2.0-beta", "2.0"]


@pytest.mark.parametrize(("older", "newer"), list(pairwise(ORDER)))
def test_versions_compare_as_people_read_them(older, newer):
    assert is_newer(newer, older) and not is_newer(older, newer) and not is_newer(newer, newer)


def test_the_newest_of_none_is_none():
    assert newest([]) == "" and newest(["1.9", "1.10", ""]) == "1.10"
