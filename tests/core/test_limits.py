"""Everything a caller can send has a bound, and its own code when it passes it."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.values import bounds
from holdfast.errors import Invalid

REFUSED = [
    (bounds.valid_queue, "invalid_name", ["", "-x", "a b", "é", "x" * 129, "x\n", ".x", 5, None]),
    (bounds.valid_action, "invalid_name", ["", "shop/send", "a" * 129]),
    (bounds.valid_key, "invalid_key", ["", "   ", "a\nb", "a\x00", "\ud800", "k" * 257, 7, None]),
    (bounds.valid_tags, "invalid_tag", ["mail", None, ["x"] * 21, ["x" * 65], ["\x07"], [""], [1], {"a": 1}]),
    (bounds.valid_priority, "invalid_priority", [-1, 10, True, 1.0, "5", None]),
    (bounds.valid_delay, "invalid_delay", [-1, "soon", "11000w", timedelta(days=-1), None, float("nan")]),
    (bounds.valid_worker_id, "invalid_worker_id", ["", " ", "w\x00", "w" * 129, 4]),
    (bounds.valid_reason, "invalid_reason", ["", " \n", "\x1b[31m", "r" * 1001, None]),
    (bounds.valid_batch, "invalid_batch", [0, -1, 10_001]),
    (bounds.valid_input, "payload_too_large", [b" " * (bounds.INPUT_BYTES_MAX + 1)]),
    (bounds.valid_output, "payload_too_large", [b" " * (bounds.OUTPUT_BYTES_MAX + 1)]),
    (bounds.valid_input, "payload_too_deep", [b"[" * 101 + b"]" * 101, b'{"a":' * 101 + b"1" + b"}" * 101]),
]
ACCEPTED = [
    (bounds.valid_queue, ["mail", "a", "_x", "a.b:c-d", "9", "x" * 128]),
    (bounds.valid_key, ["o7", "é", "two words", "k" * 256]),
    (bounds.valid_priority, range(10)),
    (bounds.valid_reason, ["fixed the mail server", "two\nlines"]),
    (
        bounds.valid_input,
        [b"{}", b"[" * 100 + b"]" * 100, b'"' + b"[" * 999 + b'"', b"[" + b"[]," * 999 + b"[]]"],
    ),
]


@pytest.mark.parametrize(
    ("check", "code", "value"), [(check, code, value) for check, code, values in REFUSED for value in values]
)
def test_what_passes_a_bound_is_refused_with_its_own_code(check, code, value):
    with pytest.raises(Invalid) as caught:
        check(value)
    assert caught.value.code == code
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(("check", "value"), [(check, value) for check, values in ACCEPTED for value in values])
def test_what_keeps_its_bound_is_returned(check, value):
    assert check(value) == value


def test_repeated_tags_count_once():
    assert bounds.valid_tags(["a", "b", "a"]) == ("a", "b")


def test_a_delay_is_given_in_seconds():
    assert [bounds.valid_delay(value) for value in ("5m", 0, timedelta(hours=1))] == [300, 0, 3600]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def depth_of(value: object) -> int:
    match value:
        case list():
            return 1 + max(map(depth_of, value), default=0)
        case dict():
            return 1 + max(map(depth_of, value.values()), default=0)
        case _:
            return 0


@given(JSON, st.booleans())
def test_nesting_is_measured_without_parsing(value, ensure_ascii):
    assert bounds.nesting_of(json.dumps(value, ensure_ascii=ensure_ascii).encode()) == depth_of(value)


@given(st.binary())
def test_nesting_of_any_bytes_is_some_number(payload):
    assert bounds.nesting_of(payload) >= 0


def test_a_malformed_payload_is_measured_in_linear_time():
    assert bounds.nesting_of(b'"' + b'\\"' * 500_000) == 0
