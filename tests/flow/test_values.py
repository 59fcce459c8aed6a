"""What a flow cannot do with a value that no run has yet: refused where it is tried, with advice."""

from __future__ import annotations

import math
import operator

import pytest
from tests.flow.shop import a_shop

import holdfast as hf

CODE = "DAG_VALIDATION_VALUE_UNKNOWN"


def refused(body, code=CODE) -> hf.Invalid:
    """Trace a flow whose function does this with an input and with the output of a node."""
    app = a_shop()

    @app.flow
    def tried(day: str):
        body(app, day, app.actions["shop.extract"](day=day))

    with pytest.raises(hf.Invalid) as caught:
        assert tried.definition
    assert caught.value.code == code
    return caught.value


BINARY = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.matmul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    divmod,
    pow,
    operator.lshift,
    operator.rshift,
    operator.and_,
    operator.or_,
    operator.xor,
]
UNARY = [operator.neg, operator.pos, abs, int, float, complex, round, len, bool, str, hash, iter, list, tuple, sorted]
USES = {
    "if": lambda value: 1 if value else 2,
    "not": lambda value: not value,
    "and": lambda value: value and 1,
    "format": lambda value: f"{value}",
    "percent": lambda value: "%s" % value,  # noqa: UP031
    "method": lambda value: "{}".format(value),  # noqa: UP032
    "loop": lambda value: [item for item in value],  # noqa: C416
    "unpack": lambda value: [*value],
    "in": lambda value: 1 in value,
    "member": lambda value: value in [1, 2],
    "key": lambda value: {value: 1},
    "attribute": lambda value: value.rows,
    "comparison as truth": lambda value: 1 if value > 3 else 2,
    "chained comparison": lambda value: 1 < value < 3,
    "two comparisons": lambda value: (value > 1) & (value < 3),
    "either comparison": lambda value: (value > 1) | (value < 3),
    "not in": lambda value: ~value.is_in([1]),
    "compared with itself": lambda value: value == value,
    "number for a range": lambda value: range(value),
    "math": lambda value: math.floor(value + 0),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_it_cannot_be_used_before_a_run_has_it(use):
    for pick in (lambda day, found: day, lambda day, found: found, lambda day, found: found["rows"]):
        error = refused(lambda app, day, found, pick=pick: use(pick(day, found)))
        assert "shop.tried" in str(error) and error.advice


@pytest.mark.parametrize("calculate", BINARY)
def test_it_cannot_be_calculated_with(calculate):
    refused(lambda app, day, found: calculate(day, 1))
    refused(lambda app, day, found: calculate(1, found))


@pytest.mark.parametrize("ask", UNARY)
def test_it_cannot_be_asked_for_its_content(ask):
    refused(lambda app, day, found: ask(day))


def test_the_error_names_the_value_and_says_what_to_do():
    error = refused(lambda app, day, found: bool(day))
    assert "The input day is used as true or false" in error.detail and ".when(" in error.advice
    error = refused(lambda app, day, found: list(found["rows"]))
    assert 'extract["rows"]' in error.detail and ".map(" in error.advice


@pytest.mark.parametrize("index", [0, slice(1), 1.5, None])
def test_an_output_is_indexed_by_text(index):
    refused(lambda app, day, found: found[index])


def test_a_binding_takes_one_key():
    refused(lambda app, day, found: found["rows"]["first"])
    refused(lambda app, day, found: day["part"])


@pytest.mark.parametrize(
    "hide",
    [lambda value: {"a": value}, lambda value: [[value]], lambda value: [{"a": [value]}], lambda value: {"a": [value]}],
)
def test_a_value_inside_a_structure_is_refused_and_not_lost(hide):
    error = refused(lambda app, day, found: app.actions["shop.anything"](x=hide(found)))
    assert "x of node anything" in error.detail or "x[0] of node anything" in error.detail


@pytest.mark.parametrize("constant", [object(), {1, object()}, float("nan"), "\x00", {"a": float("inf")}])
def test_a_constant_that_json_cannot_carry_is_refused(constant):
    refused(lambda app, day, found: app.actions["shop.anything"](x=constant), "DAG_VALIDATION_CONFIG_INVALID")


def test_a_constant_that_contains_itself_is_refused():
    endless: list = []
    endless.append(endless)
    refused(lambda app, day, found: app.actions["shop.anything"](x=endless), "DAG_VALIDATION_CONFIG_INVALID")


def test_a_value_of_another_flow_is_refused():
    taken = []
    app = a_shop()

    @app.flow
    def giver(day: str):
        taken.append(app.actions["shop.extract"](day=day))

    @app.flow
    def taker():
        app.actions["shop.anything"](x=taken[0])

    assert giver.definition
    with pytest.raises(hf.Invalid) as caught:
        assert taker.definition
    assert caught.value.code == "DAG_VALIDATION_VALUE_FOREIGN"


@pytest.mark.parametrize("returned", [7, "x", {}, [], {"a": 1}, [1], {"a": [1]}, {"a": {"b": 2}}, object()])
def test_a_flow_returns_only_what_a_run_can_give(returned):
    app = a_shop()

    @app.flow
    def constant():
        app.actions["shop.double"](x=1)
        return returned

    with pytest.raises(hf.Invalid) as caught:
        assert constant.definition
    assert caught.value.code == "DAG_VALIDATION_OUTPUT_INVALID"


@pytest.mark.parametrize("given", [True, 1, "ok", None, [1]])
def test_a_constant_is_no_condition(given):
    refused(lambda app, day, found: app.actions["shop.double"].when(given)(x=1), "DAG_VALIDATION_CONDITION_INVALID")


def test_two_conditions_are_refused():
    refused(
        lambda app, day, found: app.actions["shop.double"].when(day).when(found)(x=1),
        "DAG_VALIDATION_CONDITION_INVALID",
    )


def test_a_value_shows_what_it_is():
    shown = []
    app = a_shop()

    @app.flow
    def looked(day: str):
        found = app.actions["shop.extract"](day=day)
        shown.extend(map(repr, [day, found, found["rows"], found["count"] > 3]))

    assert looked.definition
    assert ["input day" in shown[0], "output of extract" in shown[1], 'extract["rows"]' in shown[2]] == [True] * 3
    assert "greater 3" in shown[3]
