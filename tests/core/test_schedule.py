"""Slots: cron and intervals in zones whose clocks jump, checked against times written down by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.codec.cron import timing_of
from holdfast.core.schedules.schedule import COUNT_MAX, NEWEST_MAX, Interval, due_slots, first_undecided

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
LORD_HOWE, KATHMANDU = "Australia/Lord_Howe", "Asia/Kathmandu"


def slots(cron, zone, after, count):
    found = timing_of(cron, None, zone).slots_after(datetime.fromisoformat(after))
    return [slot.astimezone(ZoneInfo(zone)).isoformat(timespec="minutes") for slot in islice(found, count)]


@pytest.mark.parametrize(
    ("cron", "zone", "after", "expected"),
    [
        # Clocks go forward: a time in the gap fires when the gap ends, and only once.
        ("30 2 * * *", BERLIN, "2027-03-27T12:00+01:00", ["2027-03-28T03:00+02:00", "2027-03-29T02:30+02:00"]),
        ("0,30 2 * * *", BERLIN, "2027-03-27T12:00+01:00", ["2027-03-28T03:00+02:00", "2027-03-29T02:00+02:00"]),
        ("30 2,3 * * *", BERLIN, "2027-03-27T12:00+01:00", ["2027-03-28T03:00+02:00", "2027-03-28T03:30+02:00"]),
        ("0 2,3 * * *", BERLIN, "2027-03-27T12:00+01:00", ["2027-03-28T03:00+02:00", "2027-03-29T02:00+02:00"]),
        ("30 2 * * *", NEW_YORK, "2027-03-13T12:00-05:00", ["2027-03-14T03:00-04:00", "2027-03-15T02:30-04:00"]),
        ("15 2 * * *", LORD_HOWE, "2026-10-03T12:00+10:30", ["2026-10-04T02:30+11:00", "2026-10-05T02:15+11:00"]),
        # Clocks go back: a time that comes twice fires the first time only.
        ("30 2 * * *", BERLIN, "2026-10-24T12:00+02:00", ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
        ("30 1 * * *", NEW_YORK, "2026-10-31T12:00-04:00", ["2026-11-01T01:30-04:00", "2026-11-02T01:30-05:00"]),
        ("45 1 * * *", LORD_HOWE, "2027-04-03T12:00+11:00", ["2027-04-04T01:45+11:00", "2027-04-05T01:45+10:30"]),
        # Asked between the two occurrences, it does not look back.
        ("30 2 * * *", BERLIN, "2026-10-25T02:10+01:00", ["2026-10-26T02:30+01:00"]),
        ("30 2 * * *", BERLIN, "2026-10-25T02:40+02:00", ["2026-10-26T02:30+01:00"]),
        # The day itself is an hour shorter or longer; other times are not touched.
        ("0 6 * * *", BERLIN, "2027-03-27T12:00+01:00", ["2027-03-28T06:00+02:00", "2027-03-29T06:00+02:00"]),
        ("0 0 * * *", BERLIN, "2026-10-24T12:00+02:00", ["2026-10-25T00:00+02:00", "2026-10-26T00:00+01:00"]),
        ("0 6 * * mon-fri", BERLIN, "2026-10-23T12:00+02:00", ["2026-10-26T06:00+01:00", "2026-10-27T06:00+01:00"]),
        # A zone that is not whole hours from UTC and never changes.
        ("0 6 * * *", KATHMANDU, "2026-10-24T12:00+05:45", ["2026-10-25T06:00+05:45", "2026-10-26T06:00+05:45"]),
        # Leap days, ends of months and years.
        ("0 0 29 2 *", KATHMANDU, "2026-01-01T00:00+05:45", ["2028-02-29T00:00+05:45", "2032-02-29T00:00+05:45"]),
        ("0 0 29 2 *", NEW_YORK, "2096-03-01T00:00-05:00", ["2104-02-29T00:00-05:00"]),
        ("59 23 31 12 *", NEW_YORK, "2026-10-24T12:00-04:00", ["2026-12-31T23:59-05:00", "2027-12-31T23:59-05:00"]),
        ("0 0 1 1 *", BERLIN, "2026-12-31T23:59+01:00", ["2027-01-01T00:00+01:00", "2028-01-01T00:00+01:00"]),
        ("0 12 31 * *", BERLIN, "2027-01-31T12:00+01:00", ["2027-03-31T12:00+02:00", "2027-05-31T12:00+02:00"]),
        ("0 12 L * *", BERLIN, "2028-02-01T12:00+01:00", ["2028-02-29T12:00+01:00", "2028-03-31T12:00+02:00"]),
        # Day of month or day of week, as cron has it when both are named.
        ("0 0 13 * fri", "UTC", "2026-11-01T00:00+00:00", ["2026-11-06T00:00+00:00", "2026-11-13T00:00+00:00"]),
    ],
)
def test_a_fixed_local_time_fires_once(cron, zone, after, expected):
    assert slots(cron, zone, after, len(expected)) == expected


@pytest.mark.parametrize(
    ("cron", "zone", "after", "expected"),
    [
        ("*/30 * * * *", BERLIN, "2027-03-28T01:15+01:00", ["01:30+01:00", "03:00+02:00", "03:30+02:00"]),
        ("0 * * * *", BERLIN, "2026-10-25T01:30+02:00", ["02:00+02:00", "02:00+01:00", "03:00+01:00"]),
        ("*/30 * * * *", NEW_YORK, "2026-11-01T01:15-04:00", ["01:30-04:00", "01:00-05:00", "01:30-05:00"]),
        ("*/30 * * * *", LORD_HOWE, "2027-04-04T01:15+11:00", ["01:30+11:00", "01:30+10:30", "02:00+10:30"]),
        ("*/15 * * * *", LORD_HOWE, "2026-10-04T01:40+10:30", ["01:45+10:30", "02:30+11:00", "02:45+11:00"]),
        ("0 */2 * * *", LORD_HOWE, "2027-04-04T00:00+11:00", ["02:00+10:30", "04:00+10:30"]),
        ("45 */6 * * *", KATHMANDU, "2027-04-04T00:00+05:45", ["00:45+05:45", "06:45+05:45"]),
    ],
)
def test_a_cron_of_every_hour_follows_the_clock_on_the_wall(cron, zone, after, expected):
    assert [slot[11:] for slot in slots(cron, zone, after, len(expected))] == expected


def test_every_quarter_of_an_hour_stays_one_through_a_year_of_clock_changes():
    found = islice(timing_of("*/15 * * * *", None, BERLIN).slots_after(datetime(2026, 1, 1, tzinfo=UTC)), 40_000)
    instants = list(found)
    gaps = {later - earlier for earlier, later in pairwise(instants)}
    assert gaps == {timedelta(minutes=15)}


def test_an_interval_counts_from_the_epoch_so_that_everybody_agrees():
    timing = timing_of(None, 600.0, BERLIN)
    after = datetime(2026, 11, 16, 1, 3, 20, tzinfo=UTC)
    assert [f"{slot:%H:%M:%S}" for slot in islice(timing.slots_after(after), 3)] == ["01:10:00", "01:20:00", "01:30:00"]
    on_a_slot = datetime(2026, 11, 16, 1, 10, tzinfo=UTC)
    assert next(timing.slots_after(on_a_slot)) == on_a_slot + timedelta(minutes=10)


CRONS = st.builds(
    "{} {} {} {} {}".format,
    st.sampled_from(["0", "30", "*/15", "5,50", "*"]),
    st.sampled_from(["2", "*", "*/2", "1-3", "0,23"]),
    st.sampled_from(["*", "1", "28-31"]),
    st.sampled_from(["*", "3,10", "4,11"]),
    st.sampled_from(["*", "sun", "mon-fri"]),
)
ZONES = st.sampled_from([BERLIN, NEW_YORK, LORD_HOWE, KATHMANDU, "Africa/Casablanca", "America/Sao_Paulo", "UTC"])
INSTANTS = st.datetimes(datetime(2026, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))


@given(cron=CRONS, zone=ZONES, after=INSTANTS)
def test_slots_go_forward_and_do_not_depend_on_where_one_starts(cron, zone, after):
    timing = timing_of(cron, None, zone)
    found = list(islice(timing.slots_after(after), 5))
    assert after < found[0] and found == sorted(set(found))
    assert list(islice(timing.slots_after(found[0]), 4)) == found[1:]
    between = after + (found[0] - after) / 2
    assert next(timing.slots_after(between)) == found[0]


HOURLY = timing_of("0 * * * *", None, "UTC")
FIRST = datetime(2026, 11, 16, 1, tzinfo=UTC)


def hours(*numbers):
    return tuple(FIRST + timedelta(hours=number) for number in numbers)


def test_due_slots_go_up_to_now_and_name_the_next():
    due = due_slots(HOURLY, FIRST, FIRST + timedelta(hours=2, minutes=30))
    assert (due.older, due.newest, due.upcoming) == (None, hours(0, 1, 2), hours(3)[0])
    assert due_slots(HOURLY, FIRST, FIRST).newest == hours(0)


def test_what_was_decided_before_is_not_due_again():
    due = due_slots(HOURLY, FIRST, FIRST + timedelta(hours=2), decided=hours(1, 3))
    assert (due.newest, due.upcoming) == (hours(0, 2), hours(4)[0])
    assert first_undecided(HOURLY, FIRST, hours(1, 2)) == hours(3)[0]


@pytest.mark.parametrize("timing", [HOURLY, Interval(step=timedelta(hours=1))], ids=["cron", "interval"])
def test_slots_of_a_long_downtime_are_counted_and_the_newest_are_named(timing):
    due = due_slots(timing, FIRST, FIRST + timedelta(hours=249))
    assert due.newest == hours(*range(150, 250)) and len(due.newest) == NEWEST_MAX
    assert due.older is not None
    assert (due.older.count, due.older.first, due.older.last) == (150, FIRST, hours(149)[0])
    assert due.upcoming == hours(250)[0]


def test_one_look_counts_only_so_many_and_the_next_goes_on():
    now = FIRST + timedelta(minutes=COUNT_MAX + 500)
    timing = timing_of("* * * * *", None, "UTC")
    due = due_slots(timing, FIRST, now)
    assert due.older is not None and (due.older.count, due.newest) == (COUNT_MAX, ())
    assert due.upcoming == FIRST + timedelta(minutes=COUNT_MAX)
    rest = due_slots(timing, due.upcoming, now)
    assert rest.older is not None and rest.older.count + len(rest.newest) == 501


def test_a_calendar_may_end():
    def two_days(after):
        return iter([day for day in (datetime(2026, 11, 17), datetime(2026, 11, 18)) if day > after])

    from holdfast.core.schedules.schedule import Cron

    timing = Cron(calendar=two_days, zone=UTC, is_recurring=False)
    due = due_slots(timing, datetime(2026, 11, 17, tzinfo=UTC), datetime(2026, 11, 19, tzinfo=UTC))
    assert (len(due.newest), due.upcoming) == (2, None)
