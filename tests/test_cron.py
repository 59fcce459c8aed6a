"""What people write about time is read, or refused with a code before anything is stored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.codec.cron import timing_of, valid_interval, zone_of
from holdfast.errors import Invalid


@pytest.mark.parametrize(
    "cron",
    [
        "",
        "* * * *",
        "0 0 * * * *",
        "61 * * * *",
        "* 24 * * *",
        "0 0 0 * *",
        "0 0 32 * *",
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "0 0 * 13 *",
        "0 0 * * 8",
        "0 0 * * funday",
        "5-1 * * * *",
        "*/0 * * * *",
        "-1 * * * *",
        "² * * * *",
        "@sometimes",
        "0 0 * * *; drop table x",
        "1," * 200 + "1 * * * *",
        7,
        b"0 0 * * *",
    ],
)
def test_what_is_no_cron_expression_is_refused(cron):
    with pytest.raises(Invalid) as refused:
        timing_of(cron, None, "UTC")
    assert (refused.value.code, bool(refused.value.advice)) == ("invalid_cron", True)


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("@daily", "2026-11-17T00:00"),
        ("@Hourly", "2026-11-16T13:00"),
        ("@weekly", "2026-11-22T00:00"),
        ("@monthly", "2026-12-01T00:00"),
        ("@yearly", "2027-01-01T00:00"),
        ("  5   4  *  *  SUN ", "2026-11-22T04:05"),
        ("0 0 * * 7", "2026-11-22T00:00"),
        ("0 0 * feb mon#2", "2027-02-08T00:00"),
    ],
)
def test_usual_spellings_are_read(cron, expected):
    found = next(timing_of(cron, None, "UTC").slots_after(datetime(2026, 11, 16, 12, 30, tzinfo=UTC)))
    assert found.isoformat(timespec="minutes") == f"{expected}+00:00"


@pytest.mark.parametrize(
    "every", [0, 0.5, "999ms", "367d", "10 years", "-5m", "", None, float("nan"), float("inf"), True]
)
def test_absurd_intervals_are_refused(every):
    with pytest.raises(Invalid) as refused:
        valid_interval(every)
    assert refused.value.code == "invalid_interval"


def test_sensible_intervals_are_read():
    assert [valid_interval(one) for one in ("10m", 1, "1d", timedelta(hours=2))] == [600.0, 1.0, 86400.0, 7200.0]


@pytest.mark.parametrize(
    "zone", ["Berlin", "europe/berlin", "Europe/Berlin ", "", "../../etc/passwd", "UTC+3", "Mars/Olympus", None, 3]
)
def test_unknown_zones_are_refused(zone):
    with pytest.raises(Invalid) as refused:
        zone_of(zone)
    assert (refused.value.code, bool(refused.value.advice)) == ("invalid_timezone", True)


def test_a_near_miss_is_suggested():
    with pytest.raises(Invalid, match="Did you mean Europe/Berlin"):
        zone_of("Europe/Berlim")


@pytest.mark.parametrize(("cron", "every"), [(None, None), ("0 6 * * *", 600.0)])
def test_a_schedule_has_a_cron_or_an_interval_and_not_both(cron, every):
    with pytest.raises(Invalid) as refused:
        timing_of(cron, every, "UTC")
    assert refused.value.code == "invalid_schedule"
