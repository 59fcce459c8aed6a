"""Capability tokens: believed only as they were sealed, and only in time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.core.identity.capability import SPARE, Capability, end_of, seal, unseal

SECRET, OTHER = bytes(range(32)), bytes(range(1, 33))
AT = datetime(2031, 5, 6, tzinfo=UTC)
A_CAPABILITY = Capability(tenant_id=1, task_id=1042, attempt=3, ends=2_000)
TEXT = seal(A_CAPABILITY, SECRET)


def test_it_survives_its_text_until_it_ends():
    assert unseal(TEXT, SECRET, at=1_999.9) == A_CAPABILITY
    assert unseal(TEXT, SECRET, at=2_000) is None


def test_it_names_the_token_it_was_claimed_with():
    named = A_CAPABILITY._replace(token_id="0123456789ab")
    text = seal(named, SECRET)
    assert unseal(text, SECRET, at=0) == named
    assert unseal(text.replace(".0123456789ab", ""), SECRET, at=0) is None
    assert unseal(text.replace("0123456789ab", "0123456789ac"), SECRET, at=0) is None


def test_another_installation_does_not_believe_it():
    assert unseal(TEXT, OTHER, at=0) is None


@pytest.mark.parametrize("field", ["tenant_id", "task_id", "attempt", "ends"])
def test_no_part_of_it_can_be_changed(field):
    values = {name: getattr(A_CAPABILITY, name) for name in ("tenant_id", "task_id", "attempt", "ends")}
    other = seal(Capability(**{**values, field: values[field] + 1}), OTHER)
    forged = other.rpartition("_")[0] + "_" + TEXT[-43:]
    assert unseal(forged, SECRET, at=0) is None


@pytest.mark.parametrize(
    "text", ["", "hfc_", TEXT[:-1], TEXT + "A", TEXT.replace("hfc_", "hf_"), TEXT.replace("3", "03", 1)]
)
def test_other_texts_are_no_capability(text):
    assert unseal(text, SECRET, at=0) is None


def test_it_outlives_its_lease_and_the_limit_of_its_attempt():
    assert datetime.fromtimestamp(end_of(AT, None), UTC) == AT + SPARE
    assert datetime.fromtimestamp(end_of(AT, 7200.0), UTC) == AT + SPARE + timedelta(hours=2)


def test_a_weak_secret_is_never_used():
    with pytest.raises(AssertionError):
        seal(A_CAPABILITY, b"changeme")
