from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.effects.effect import blame, causing_effect, stable_key

BASE = {
    "installation": "here",
    "epoch": "first",
    "tenant": "default",
    "effect": "smtp.send",
    "user_key": "receipt:7",
    "task_id": "1",
    "ordinal": 0,
}


def test_with_a_key_the_task_does_not_matter():
    assert stable_key(**BASE) == stable_key(**BASE | {"task_id": "2", "ordinal": 5, "epoch": "second"})


@pytest.mark.parametrize("changed", [{"installation": "there"}, {"tenant": "b"}, {"effect": "sms"}, {"user_key": "x"}])
def test_everything_else_does(changed):
    assert stable_key(**BASE) != stable_key(**BASE | changed)


def test_without_a_key_the_task_and_the_order_tell():
    plain = BASE | {"user_key": None}
    found = {
        stable_key(**plain | {"task_id": task, "ordinal": n, "epoch": epoch})
        for task in ("1", "2")
        for n in (0, 1)
        for epoch in ("first", "second")
    }
    assert len(found) == 8


def test_a_key_fits_what_providers_take():
    assert len(stable_key(**BASE)) <= 64


@given(st.lists(st.text(), min_size=3, max_size=3), st.lists(st.text(), min_size=3, max_size=3))
def test_parts_do_not_run_together(one, two):
    def key(parts):
        named = {"tenant": parts[0], "effect": parts[1], "user_key": parts[2]}
        return stable_key(installation="", epoch="", task_id="1", ordinal=0, **named)

    assert (key(one) == key(two)) == (one == two)


class Stubborn(Exception):
    """Takes no attributes, and has an opinion on those it lacks."""

    def __setattr__(self, name, value):
        raise TypeError(name)

    def __getattr__(self, name):
        raise TypeError(name)


def test_an_exception_remembers_its_effect_whatever_its_class():
    error = Stubborn("no")
    assert causing_effect(error) == ""
    blame(error, "hf-1")
    assert causing_effect(error) == "hf-1"


def test_exceptions_that_lead_to_each_other_have_an_end():
    first, second = ValueError(), ValueError()
    first.__cause__, second.__cause__ = second, first
    assert causing_effect(first) == ""
