"""Whatever user code raises becomes a failure that can be stored."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.tasks.failure import (
    EXCEPTION_CODE,
    MESSAGE_BYTES_MAX,
    TRACEBACK_BYTES_MAX,
    Failure,
    FailureReport,
    failure_of,
    storable_text,
)
from holdfast.core.tasks.signals import Fatal, Retry
from holdfast.errors import Conflict, Invalid

ANY_TEXT = st.text(st.characters(codec=None, categories=None))


class Hostile(Exception):
    """An exception that fails whenever somebody looks at it."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    @property
    def code(self) -> str:
        raise RuntimeError("no code")

    @property
    def retry_after(self) -> float:
        raise RuntimeError("no delay")

    @property
    def headers(self) -> dict[str, str]:
        raise RuntimeError("no headers")


def raised(error: BaseException) -> Failure:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - the test is about any of them
        return failure_of(caught)


def with_fields(**fields: object) -> Exception:
    error = RuntimeError("x")
    for name, value in fields.items():
        setattr(error, name, value)
    return error


@given(text=ANY_TEXT, bytes_max=st.integers(1, 300))
def test_clipped_text_is_storable_and_short(text, bytes_max):
    kept = storable_text(text, bytes_max)
    assert len(kept.encode("utf-8")) <= bytes_max
    assert "\x00" not in kept
    assert storable_text(kept, bytes_max) == kept


def test_long_text_keeps_its_head_and_its_tail():
    kept = storable_text("begin" + "é" * 10**6 + "end", 1000)
    assert kept.startswith("begin")
    assert kept.endswith("end")
    assert "[...]" in kept


def test_unstorable_characters_are_replaced():
    assert storable_text("a\x00b\ud800c", 100) == "a\ufffdb\ufffdc"


def test_every_text_of_a_failure_is_limited():
    failure = Failure(code="c" * 999, message="m\x00" * 10**5, type="t" * 9999, traceback="t" * 10**6)
    assert len(failure.message.encode()) <= MESSAGE_BYTES_MAX
    assert len(failure.traceback.encode()) <= TRACEBACK_BYTES_MAX
    assert len(failure.code) <= 128


def test_an_exception_is_recorded_with_its_chain():
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ConnectionResetError("outer") from inner
    except ConnectionResetError as error:
        failure = failure_of(error)
    assert (failure.type, failure.message, failure.code) == ("ConnectionResetError", "outer", EXCEPTION_CODE)
    assert "KeyError: 'inner'" in failure.traceback
    assert failure.bases[:2] == ("ConnectionError", "OSError")
    assert failure.frames[-1].endswith("test_failure.py:test_an_exception_is_recorded_with_its_chain")


def test_a_hostile_exception_is_recorded_all_the_same():
    failure = raised(Hostile())
    assert failure.type.endswith("Hostile")
    assert failure.code == EXCEPTION_CODE
    assert failure.retry_after is None


@pytest.mark.parametrize("code", ["", "two words", "x" * 65, 429, None, b"x", "line\n"])
def test_only_a_short_word_counts_as_a_code(code):
    assert failure_of(with_fields(code=code)).code == EXCEPTION_CODE


def test_an_error_code_is_kept():
    assert failure_of(with_fields(code="E_42")).code == "E_42"
    assert failure_of(Conflict("no", code="held")).code == "held"


def test_the_exit_text_of_a_program_is_not_a_code():
    assert failure_of(SystemExit("bye")).code == EXCEPTION_CODE


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [(5, 5), ("7", 7), (timedelta(minutes=1), 60), (-1, None), ("Wed, 21 Oct", None), ([], None)],
)
def test_retry_after_is_read_from_the_exception(asked, seconds):
    wanted = None if seconds is None else timedelta(seconds=seconds)
    assert failure_of(with_fields(retry_after=asked)).retry_after == wanted


SENT = "Wed, 21 Oct 2026 07:28:00 GMT"
LATER = "Wed, 21 Oct 2026 07:30:30 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": LATER, "Date": SENT}, 150),
        ({"retry-after": LATER, "date": SENT}, 150),
        ({"Retry-After": LATER}, 30),
        ({"Retry-After": SENT, "Date": LATER}, 0),
        ({"Retry-After": "Wed, 99 Oct 2026 07:28:00 GMT"}, None),
        ({"Retry-After": "soon"}, None),
    ],
)
def test_retry_after_may_be_a_date(headers, seconds):
    now = datetime(2026, 10, 21, 7, 30, tzinfo=UTC)
    found = failure_of(with_fields(response=SimpleNamespace(headers=headers)), now=now).retry_after
    assert found == (None if seconds is None else timedelta(seconds=seconds))


def test_a_date_without_a_clock_says_nothing():
    assert failure_of(with_fields(headers={"Retry-After": LATER})).retry_after is None


def test_retry_after_is_read_from_a_response():
    response = with_fields(headers={"retry-after": "12"})
    assert failure_of(with_fields(response=response)).retry_after == timedelta(seconds=12)
    assert failure_of(with_fields(headers={"Retry-After": "3"})).retry_after == timedelta(seconds=3)


def test_retry_and_fatal_say_what_they_want():
    retry, fatal = failure_of(Retry(after="30s", message="later")), failure_of(Fatal("never"))
    assert (retry.said, retry.retry_after, retry.message) == (FailureReport.RETRY, timedelta(seconds=30), "later")
    assert (fatal.said, fatal.retry_after, fatal.message) == (FailureReport.FATAL, None, "never")


def test_signals_survive_the_way_between_processes():
    again = pickle.loads(pickle.dumps(Retry(after="30s", message="later")))
    assert (again.after, str(again)) == (timedelta(seconds=30), "later")
    assert str(pickle.loads(pickle.dumps(Fatal("never")))) == "never"


def test_a_retry_after_nonsense_is_refused_at_once():
    with pytest.raises(Invalid):
        Retry(after="soon")


@given(ANY_TEXT)
def test_any_message_makes_a_storable_failure(text):
    failure = raised(ValueError(text))
    for part in (failure.message, failure.traceback, failure.type, *failure.frames):
        part.encode("utf-8")
        assert "\x00" not in part
