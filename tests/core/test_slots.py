"""What becomes of slots: every overlap policy, every missed-fire policy, and how they meet."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.core.schedules.schedule import Due, Missed, Older, Overlap
from holdfast.core.schedules.slots import LATE_SECONDS, Cause, ScheduleState, SlotState, decide_manual_slot, judge
from holdfast.core.schedules.summary import ScheduleFacts, describe

NOW = datetime(2026, 11, 16, 12, 0, 5, tzinfo=UTC)


def at(minutes):
    return NOW - timedelta(seconds=5, minutes=minutes)


def due(*minutes_ago, older=None):
    return Due(older=older, newest=tuple(map(at, minutes_ago)), upcoming=at(-1))


def standing(overlap="skip", missed="latest", **fields):
    fields = {"max_waiting": 2, "busy_with": None} | fields
    return ScheduleState(overlap=Overlap(overlap), missed=Missed(missed), **fields)


def fates(judged):
    return [(one.state.value, one.cause.value) for one in judged.verdicts]


FIRED, LATE = ("fired", "on_time"), ("fired", "late")
MISSED, OVERLAP = ("missed", "no_scheduler"), ("skipped", "overlap")
WAITS, FULL, REPLACED = ("waiting", "overlap"), ("skipped", "waiting_full"), ("skipped", "replaced")


@pytest.mark.parametrize(
    ("missed", "slots", "expected"),
    [
        ("skip", (0,), [FIRED]),
        ("latest", (0,), [FIRED]),
        ("all", (0,), [FIRED]),
        ("skip", (180, 120, 60), [MISSED] * 3),
        ("latest", (180, 120, 60), [MISSED, MISSED, LATE]),
        ("all", (180, 120, 60), [LATE] * 3),
        ("skip", (120, 60, 0), [MISSED, MISSED, FIRED]),
        ("latest", (120, 60, 0), [MISSED, MISSED, FIRED]),
        ("all", (120, 60, 0), [LATE, LATE, FIRED]),
    ],
)
def test_missed_slots(missed, slots, expected):
    assert fates(judge(due(*slots), standing("allow", missed), NOW)) == expected


@pytest.mark.parametrize(
    ("overlap", "busy_with", "waiting", "slots", "expected"),
    [
        ("skip", None, (), (0,), [FIRED]),
        ("skip", "task 7", (), (0,), [OVERLAP]),
        ("skip", None, (), (120, 0), [LATE, OVERLAP]),
        ("queue", None, (), (0,), [FIRED]),
        ("queue", "task 7", (), (0,), [WAITS]),
        ("queue", "task 7", (120, 60), (0,), [FULL]),
        ("queue", None, (), (240, 180, 120, 0), [LATE, WAITS, WAITS, FULL]),
        ("replace", None, (), (0,), [FIRED]),
        ("replace", "task 7", (), (0,), [WAITS]),
        ("replace", None, (), (120, 60, 0), [REPLACED, REPLACED, FIRED]),
        ("replace", "task 7", (), (120, 60, 0), [REPLACED, REPLACED, WAITS]),
        ("allow", "task 7", (), (120, 0), [LATE, FIRED]),
    ],
)
def test_overlapping_slots(overlap, busy_with, waiting, slots, expected):
    given = standing(overlap, "all", busy_with=busy_with, waiting=tuple(map(at, waiting)))
    assert fates(judge(due(*slots), given, NOW)) == expected


@pytest.mark.parametrize(
    ("overlap", "missed", "busy_with", "expected"),
    [
        ("allow", "latest", None, [MISSED, FIRED, FIRED]),
        ("allow", "skip", "task 7", [MISSED, FIRED, FIRED]),
        ("allow", "all", None, [LATE, FIRED, FIRED]),
        ("queue", "latest", None, [MISSED, FIRED, WAITS]),
        ("queue", "skip", "task 7", [MISSED, WAITS, WAITS]),
        ("replace", "latest", None, [MISSED, REPLACED, FIRED]),
        ("replace", "skip", "task 7", [MISSED, REPLACED, WAITS]),
        ("skip", "latest", None, [MISSED, REPLACED, FIRED]),
        ("skip", "skip", "task 7", [MISSED, OVERLAP, OVERLAP]),
        ("skip", "all", None, [LATE, OVERLAP, OVERLAP]),
    ],
)
def test_slots_of_the_last_minute_are_late_and_not_missed(overlap, missed, busy_with, expected):
    """Every half a minute, and nobody looked for a while."""
    slots = tuple(NOW - timedelta(seconds=seconds) for seconds in (LATE_SECONDS + 10, LATE_SECONDS - 20, 10))
    came = Due(older=None, newest=slots, upcoming=None)
    assert fates(judge(came, standing(overlap, missed, busy_with=busy_with), NOW)) == expected


def test_what_waited_goes_first_and_only_when_the_way_is_free():
    waiting = (at(120), at(60))
    assert judge(due(), standing("queue", busy_with="task 7", waiting=waiting), NOW).released is None
    judged = judge(due(0), standing("queue", waiting=waiting), NOW)
    assert judged.released == at(120)
    assert fates(judged) == [WAITS]


def test_a_newer_slot_takes_the_place_of_one_that_waits():
    judged = judge(due(0), standing("replace", busy_with="task 7", waiting=(at(60),)), NOW)
    assert (judged.dropped, judged.released, fates(judged)) == ((at(60),), None, [WAITS])
    judged = judge(due(0), standing("replace", waiting=(at(60),)), NOW)
    assert (judged.dropped, judged.released, fates(judged)) == ((at(60),), None, [FIRED])


def test_slots_of_a_pause_are_skipped_with_its_reason_and_nothing_that_waits_goes():
    older = Older(count=7, first=at(900), last=at(200))
    judged = judge(due(60, 0, older=older), standing("queue", paused="Paused by ann.", waiting=(at(999),)), NOW)
    assert [(one.count, one.first, one.cause, one.reason) for one in judged.verdicts] == [
        (7, at(900), Cause.PAUSED, "Paused by ann."),
        (1, None, Cause.PAUSED, "Paused by ann."),
        (1, None, Cause.PAUSED, "Paused by ann."),
    ]
    assert judged.released is None


@pytest.mark.parametrize("missed", Missed)
def test_slots_older_than_the_newest_hundred_are_missed_together(missed):
    judged = judge(due(0, older=Older(count=7, first=at(900), last=at(200))), standing(missed=missed), NOW)
    together, newest = judged.verdicts
    assert (together.state, together.count, together.slot) == (SlotState.MISSED, 7, at(200))
    assert newest.state is SlotState.FIRED


def test_the_border_of_being_late():
    for seconds, cause in ((LATE_SECONDS, Cause.ON_TIME), (LATE_SECONDS + 1, Cause.LATE)):
        slot = NOW - timedelta(seconds=seconds)
        judged = judge(Due(older=None, newest=(slot,), upcoming=None), standing(), NOW)
        assert judged.verdicts[0].cause is cause


def test_every_verdict_that_is_no_plain_firing_says_why():
    for overlap in Overlap:
        for missed in Missed:
            for busy_with in (None, "run 9"):
                judged = judge(due(300, 200, 100, 0), standing(overlap, missed, busy_with=busy_with), NOW)
                assert len(judged.verdicts) == 4
                assert all(one.reason or one.cause is Cause.ON_TIME for one in judged.verdicts)


def test_by_hand_a_pause_does_not_count_but_the_previous_firing_does():
    fired = decide_manual_slot(NOW, standing(paused="Paused by ann."), "because")
    assert [(one.state, one.cause, one.reason) for one in fired.verdicts] == [
        (SlotState.FIRED, Cause.BY_HAND, "because")
    ]
    assert fates(decide_manual_slot(NOW, standing(busy_with="task 7"), "")) == [OVERLAP]
    assert fates(decide_manual_slot(NOW, standing("queue", busy_with="task 7"), "")) == [WAITS]


FACTS = ScheduleFacts(at=NOW, next_at=NOW + timedelta(hours=3))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "Next fires in 3h 00m; has not fired yet."),
        (
            {"has_fired": True, "last_outcome": "completed", "passed_over": {"overlap": 2}},
            "Next fires in 3h 00m; the last firing completed; 2 slots skipped because the previous firing still ran.",
        ),
        (
            {"passed_over": {"no_scheduler": 3}},
            "Next fires in 3h 00m; has not fired yet; 3 slots missed while no scheduler ran.",
        ),
        (
            {"has_fired": True, "last_outcome": "running", "waiting": 1},
            "Next fires in 3h 00m; the last firing is running; 1 slot waits for it.",
        ),
        ({"paused_by": "ann", "paused_reason": "a migration"}, "Paused by ann: a migration; has not fired yet."),
        ({"trouble": "no such flow."}, "Cannot fire: no such flow; has not fired yet."),
        ({"next_at": None, "has_fired": True}, "Never fires again; the last firing is no longer on record."),
        ({"next_at": NOW - timedelta(seconds=3)}, "Fires now; has not fired yet."),
        (
            {"next_at": NOW - timedelta(minutes=5)},
            "Should have fired 5m 00s ago: does any worker or server run; has not fired yet.",
        ),
    ],
)
def test_how_a_schedule_stands_in_a_sentence(changes, expected):
    assert describe(replace(FACTS, **changes)) == expected
