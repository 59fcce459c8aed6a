"""A retry policy is refused when it makes no sense, and keeps its JSON form."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.tasks.classify import Rule
from holdfast.core.tasks.policy import RetryPolicy
from holdfast.errors import Invalid

POLICIES = st.builds(
    RetryPolicy,
    max_retries=st.integers(0, 1000),
    max_losses=st.integers(0, 1000),
    is_enabled=st.booleans(),
    base_backoff_secs=st.floats(0, 1000),
    max_backoff_secs=st.integers(0, 1000),
    backoff_multiplier=st.floats(1, 10),
    jitter_factor=st.floats(0, 0.99),
    timeout_seconds=st.none() | st.floats(0.001, 1000),
    rules=st.lists(
        st.builds(Rule, pattern=st.text(min_size=1, max_size=9).filter(str.isprintable), retry=st.booleans()),
        max_size=3,
    ).map(tuple),
    queue_ttl_seconds=st.none() | st.integers(1, 1000),
    memory_bytes_max=st.none() | st.integers(1, 2**40),
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_retries", -1),
        ("max_retries", 1.5),
        ("max_retries", True),
        ("max_retries", "3"),
        ("max_retries", 10**9),
        ("max_losses", -1),
        ("base_backoff_secs", -0.1),
        ("base_backoff_secs", float("nan")),
        ("max_backoff_secs", float("inf")),
        ("max_backoff_secs", 10**9),
        ("backoff_multiplier", 0.9),
        ("backoff_multiplier", 10**6),
        ("jitter_factor", 1.0),
        ("jitter_factor", -0.1),
        ("timeout_seconds", 0),
        ("queue_ttl_seconds", -5),
        ("memory_bytes_max", 0),
        ("is_enabled", 1),
        ("rules", (Rule(),)),
        ("rules", (Rule(pattern="x"),) * 101),
        ("rules", (Rule(pattern="x" * 257),)),
        ("rules", (Rule(pattern="a\x00"),)),
        ("rules", (Rule(pattern="x", retry=1),)),
    ],
)
def test_nonsense_is_refused_with_the_name_of_the_field(field, value):
    with pytest.raises(Invalid) as caught:
        RetryPolicy(**{field: value}).validated()
    assert caught.value.code == "invalid_policy"
    assert field in str(caught.value)


def test_the_defaults_are_valid_and_allow_four_attempts():
    assert RetryPolicy().validated().max_attempts == 4


@given(POLICIES)
def test_a_policy_survives_its_json_form(policy):
    text = json.dumps(policy.to_json())
    again = RetryPolicy.from_json(json.loads(text))
    assert again == policy
    assert json.dumps(again.to_json()) == text


def test_equal_policies_have_equal_json():
    whole, broken = RetryPolicy(base_backoff_secs=1), RetryPolicy(base_backoff_secs=1.0)
    assert json.dumps(whole.to_json()) == json.dumps(broken.to_json())


def test_a_stored_policy_may_lack_fields_and_have_others():
    assert RetryPolicy.from_json({"max_retries": 7, "from_the_future": 1}) == RetryPolicy(max_retries=7)


@pytest.mark.parametrize("stored", [{"max_retries": "x"}, {"rules": 1}, {"rules": [1]}, {"rules": [{"code": 4}]}])
def test_a_damaged_policy_is_refused(stored):
    with pytest.raises(Invalid):
        RetryPolicy.from_json(stored)
