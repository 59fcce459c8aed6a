"""Durations are read strictly and written readably."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.values.duration import DURATION_SECONDS_MAX, human, seconds_of
from holdfast.errors import Invalid


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2m", 120),
        ("1h30m", 5400),
        ("250ms", 0.25),
        ("5 s", 5),
        ("1m 04s", 64),
        ("1.5h", 5400),
        ("2d 03h", 183600),
        ("1w", 604800),
        (" 30 ", 30),
        (30, 30),
        (0.5, 0.5),
        (0, 0),
        ("0s", 0),
        (timedelta(minutes=1), 60),
    ],
)
def test_a_duration_is_read_as_seconds(value, seconds):
    assert seconds_of(value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "soon",
        "5x",
        "-5s",
        "5s5s",
        "5s 1m",
        "1e5",
        "5 M",
        "٣s",
        "9" * 400,
        "s",
        "1..5s",
        -1,
        True,
        None,
        [],
        10**400,
        float("nan"),
        float("inf"),
        timedelta(seconds=-1),
        "101w 99999d",
        DURATION_SECONDS_MAX + 1,
    ],
)
def test_anything_else_is_refused(value):
    with pytest.raises(Invalid) as caught:
        seconds_of(value)
    assert caught.value.code == "invalid_duration"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0004, "0 ms"),
        (0.14, "140 ms"),
        (0.9996, "1.0 s"),
        (3.2, "3.2 s"),
        (59.96, "1m 00s"),
        (64, "1m 04s"),
        (3599.7, "1h 00m"),
        (7500, "2h 05m"),
        (183600, "2d 03h"),
        (-3.2, "-3.2 s"),
        (float("inf"), "forever"),
    ],
)
def test_a_duration_is_written_for_people(seconds, text):
    assert human(seconds) == text


@given(st.floats(0, DURATION_SECONDS_MAX))
def test_what_people_read_can_be_read_back_to_two_places(seconds):
    again = seconds_of(human(seconds))
    assert again == pytest.approx(seconds, rel=0.05, abs=0.0006)


@given(st.text(max_size=100))
def test_no_text_breaks_the_parser(text):
    try:
        assert 0 <= seconds_of(text) <= DURATION_SECONDS_MAX
    except Invalid as refused:
        assert refused.code == "invalid_duration"
