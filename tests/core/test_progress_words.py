"""Progress is shown whatever a worker said of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.tasks.progress_text import progress_text


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"done": 3.0, "total": 10.0, "message": "pages read"}, "3/10 pages read"),
        ({"done": 0.25, "total": 1.0, "message": ""}, "25 %"),
        ({"done": 2, "total": 0}, "2/0"),
        ({"done": "3"}, "3/1"),
        ({"done": "3", "total": None, "message": None}, "3/None"),
        ({"done": True, "total": 1}, "True/1"),
        ({"message": "begun"}, "begun"),
        ({}, ""),
        ("half", "half"),
    ],
)
def test_progress_reads_as_it_was_meant(said, text):
    assert progress_text(said) == text


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(ANYTHING | st.fixed_dictionaries({}, optional={"done": ANYTHING, "total": ANYTHING, "message": ANYTHING}))
def test_nothing_said_breaks_it(said):
    assert isinstance(progress_text(said), str)
