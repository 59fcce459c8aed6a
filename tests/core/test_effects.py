from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.effects import stable_key

BASE = {
    "installation": "here",
    "tenant": "default",
    "effect": "smtp.send",
    "user_key": "receipt:7",
    "task_id": "1",
    "ordinal": 0,
}


def test_with_a_key_the_task_does_not_matter():
    assert stable_key(**BASE) == stable_key(**BASE | {"task_id": "2", "ordinal": 5})


@pytest.mark.parametrize("changed", [{"installation": "there"}, {"tenant": "b"}, {"effect": "sms"}, {"user_key": "x"}])
def test_everything_else_does(changed):
    assert stable_key(**BASE) != stable_key(**BASE | changed)


def test_without_a_key_the_task_and_the_order_tell():
    plain = BASE | {"user_key": None}
    found = {stable_key(**plain | {"task_id": task, "ordinal": n}) for task in ("1", "2") for n in (0, 1)}
    assert len(found) == 4


def test_a_key_fits_what_providers_take():
    assert len(stable_key(**BASE)) <= 64


@given(st.lists(st.text(), min_size=3, max_size=3), st.lists(st.text(), min_size=3, max_size=3))
def test_parts_do_not_run_together(one, two):
    def key(parts):
        return stable_key(installation="", tenant=parts[0], effect=parts[1], user_key=parts[2], task_id="1", ordinal=0)

    assert (key(one) == key(two)) == (one == two)
