"""Templates fill in values and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.authoring.packs.template import MissingInput, names_in, render, render_text

VALUES = {"id": 7, "name": "Ada", "tags": ["a"], "address": {"city": "Bonn"}}


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("${id}", 7),
        ("order ${id} of ${name}", "order 7 of Ada"),
        ("${tags}", ["a"]),
        ("tags: ${tags}", 'tags: ["a"]'),
        ("${address.city}", "Bonn"),
        ("$${id} costs 5 $", "${id} costs 5 $"),
        ({"to": ["${name}", {"${name}": "${ id }"}], "n": None}, {"to": ["Ada", {"Ada": 7}], "n": None}),
        (3, 3),
    ],
)
def test_a_template_is_filled_in(template, filled):
    assert render(template, VALUES) == filled


@pytest.mark.parametrize("template", ["${gone}", "${address.street}", "${id.x}"])
def test_a_missing_input_is_named(template):
    with pytest.raises(MissingInput, match="which the input does not have") as missing:
        render(template, VALUES)
    assert missing.value.code == "invalid_parameters"


@given(st.text())
def test_a_value_is_never_read_as_a_template(text):
    assert render("${name}", {"name": text}) == text
    assert render_text("<${name}>", {"name": text}) == f"<{text}>"


def test_the_names_of_a_template_are_known():
    assert set(names_in({"a": ["${x.y}", "$${no}"], "${z}": 1})) == {"x", "z"}
