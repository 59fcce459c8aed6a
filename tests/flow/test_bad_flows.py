"""Flows nobody meant to write: endless, huge, deep. Clear errors, and time that grows no faster than the flow."""

from __future__ import annotations

import pytest
from tests.core.flows import lines_run
from tests.flow.shop import a_shop

import holdfast as hf
from holdfast.authoring.flow import trace
from holdfast.authoring.flow.yaml_flow import parse_flow
from holdfast.core.drawing.layout import layout
from holdfast.core.drawing.text import draw_text
from holdfast.core.flows import graph


def a_chain(length: int) -> hf.Flow:
    app = a_shop()
    double = app.actions["shop.double"]

    @app.flow
    def chain(x: int):
        for _ in range(length):
            x = double(x=x)
        return x

    return chain


def a_yaml_chain(length: int) -> bytes:
    lines = [f"- {{name: n{number + 1}, action: x, bind: {{x: n{number}}}}}" for number in range(length - 1)]
    return "\n".join(["name: f", "nodes:", "- {name: n0, action: x}", *lines]).encode()


@pytest.mark.slow("it runs a large flow or many of them; test_names_that_collide_cost_no_more_than_others is fast")
def test_a_chain_of_ten_thousand_is_traced_read_and_drawn():
    definition = a_chain(10_000).definition
    assert len(definition.nodes) == 10_000 and len(definition.graph().order) == 10_000
    assert draw_text(layout(definition)).count("\n") == 10_000
    assert len(parse_flow(a_yaml_chain(10_000), file="f.yaml").nodes) == 10_000


@pytest.mark.slow("it runs a large flow or many of them; test_names_that_collide_cost_no_more_than_others is fast")
def test_a_fan_in_of_ten_thousand_is_one_node():
    app = a_shop()

    @app.flow
    def wide():
        return app.actions["shop.add"](numbers=[app.actions["shop.double"](x=number) for number in range(10_000)])

    assert len(wide.definition.edges) == 10_001


@pytest.mark.slow("it runs a large flow or many of them; test_names_that_collide_cost_no_more_than_others is fast")
def test_work_grows_with_the_flow_and_not_faster():
    small, large = (lines_run(lambda length=length: a_chain(length).definition) for length in (100, 1_000))
    assert large < 12 * small
    small, large = (
        lines_run(lambda length=length: parse_flow(a_yaml_chain(length), file="f.yaml")) for length in (100, 1_000)
    )
    assert large < 12 * small


def test_names_that_collide_cost_no_more_than_others():
    def traced(length: int) -> None:
        app = a_shop()

        @app.flow
        def chosen():
            for number in range(length):
                app.actions["shop.double"].named(f"double_{number}")(x=1)
            for _ in range(length):
                app.actions["shop.double"](x=1)

        assert len(chosen.definition.nodes) == 2 * length

    assert lines_run(lambda: traced(1_000)) < 12 * lines_run(lambda: traced(100))


def test_a_flow_without_end_ends_with_an_error(monkeypatch):
    monkeypatch.setattr(trace, "NODES_MAX", 500)
    app = a_shop()

    @app.flow
    def endless():
        while True:
            app.actions["shop.double"](x=1)

    with pytest.raises(hf.Invalid) as caught:
        assert endless.definition
    assert (caught.value.code, caught.value.fields["limit"]) == ("DAG_VALIDATION_NODES_TOO_MANY", 500)


def test_a_function_that_calls_itself_without_end_is_a_broken_flow():
    app = a_shop()

    @app.flow
    def deep():
        def again():
            again()

        again()

    with pytest.raises(hf.Invalid, match="RecursionError") as caught:
        assert deep.definition
    assert caught.value.code == "flow_broken"
    assert app.actions["shop.extract"]("monday")["day"] == "monday"


def test_a_definition_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(graph, "DEFINITION_BYTES_MAX", 10_000)
    app = a_shop()
    flow = app.flow(name="large")(lambda: app.actions["shop.anything"](x="y" * 10_000))
    with pytest.raises(hf.Invalid) as caught:
        assert flow.definition
    assert caught.value.code == "DAG_VALIDATION_DEFINITION_TOO_LARGE"


def test_a_constant_nested_too_deep_is_refused():
    nested: list = []
    for _ in range(100_000):
        nested = [nested]
    app = a_shop()
    flow = app.flow(name="deep")(lambda: app.actions["shop.anything"](x=nested))
    with pytest.raises(hf.Invalid) as caught:
        assert flow.definition
    assert caught.value.code == "DAG_VALIDATION_CONFIG_INVALID"
    while nested:
        nested = nested.pop()


def test_a_yaml_file_with_too_many_nodes_is_refused(monkeypatch):
    monkeypatch.setattr("holdfast.core.flows.graph_check.NODES_MAX", 50)
    with pytest.raises(hf.Invalid) as caught:
        parse_flow(a_yaml_chain(51), file="f.yaml")
    assert caught.value.code == "DAG_VALIDATION_NODES_TOO_MANY"
