"""Flows as people write them: what a function becomes when it is traced."""

from __future__ import annotations

import datetime
import threading

import pytest
from tests.flow.shop import a_shop

import holdfast as hf
from holdfast.core.flows.nodes import RUN_INPUT, RUN_OUTPUT, NodeKind, TriggerRule


@pytest.fixture
def app():
    return a_shop()


@pytest.fixture
def shop(app):
    """The actions by their short names."""
    return type("Shop", (), {name.removeprefix("shop."): staticmethod(action) for name, action in app.actions.items()})


def edges(flow) -> dict[str, list[tuple[str, str]]]:
    """The bindings of each edge; an order-only one has none."""
    return {
        str(edge): [(binding.output_key, binding.input_key) for binding in edge.bindings]
        for edge in flow.definition.edges
    }


def nodes(flow) -> dict:
    return {node.name: node for node in flow.definition.nodes}


def test_calls_become_nodes_and_values_become_bindings(app, shop):
    @app.flow(version=3)
    def nightly(day: str, limit: int = 10):
        orders = shop.extract(day=day)
        total = shop.add(numbers=orders["rows"], bonus=5)
        shop.publish(report=total, title=day)

    assert (nightly.name, nightly.version, nightly.definition.version) == ("shop.nightly", 3, 3)
    assert app.flows == {"shop.nightly": nightly}
    assert list(nodes(nightly)) == ["extract", "add", "publish"]
    assert nodes(nightly)["add"].config == {"bonus": 5}
    assert edges(nightly) == {
        f"{RUN_INPUT} → extract": [("day", "day")],
        "extract → add": [("rows", "numbers")],
        "add → publish": [("", "report")],
        f"{RUN_INPUT} → publish": [("day", "title")],
    }


def test_parameters_become_inputs_of_the_run(app, shop):
    @app.flow
    def nightly(day: str, limit: int = 10, *, since: datetime.date = datetime.date(2026, 1, 2)):
        shop.extract(day=day)

    assert nightly.version == 1
    inputs = [(one.name, one.is_required, one.default) for one in nightly.inputs]
    assert inputs == [("day", True, None), ("limit", False, 10), ("since", False, "2026-01-02")]


def test_a_flow_is_traced_once_and_not_before_it_is_needed(app, shop):
    traced = []

    @app.flow
    def nightly(day: str):
        traced.append(day)
        later(day=day)

    assert nightly.inputs[0].name == "day" and not traced

    @app.action
    def later(day: str) -> None: ...

    threads = [threading.Thread(target=lambda: nightly.definition) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert nightly.definition is nightly.definition and len(traced) == 1


def test_an_action_used_twice_gets_a_number_that_nobody_chose(app, shop):
    @app.flow
    def many():
        shop.double.named("double_2")(x=0)
        for number in range(3):
            shop.double(x=number)
        shop.double.named("left")(x=9)

    assert list(nodes(many)) == ["double_2", "double", "double_3", "double_4", "left"]


def test_positional_arguments_are_those_behind_the_context(app, shop):
    @app.flow
    def two(day: str):
        shop.extract(day, "users")
        shop.double(7)

    assert nodes(two)["double"].config == {"x": 7}
    assert nodes(two)["extract"].config == {"what": "users"}


def test_a_list_of_values_and_constants_is_a_list_port(app, shop):
    @app.flow
    def mixed(number: int):
        one = shop.double(x=1)
        shop.add(numbers=[one, 5, number, one])

    assert nodes(mixed)["add"].config == {"numbers[1]": 5}
    assert edges(mixed)["double → add"] == [("", "numbers[0]"), ("", "numbers[3]")]
    assert edges(mixed)[f"{RUN_INPUT} → add"] == [("number", "numbers[2]")]


def test_a_list_of_constants_is_config(app, shop):
    @app.flow
    def constant():
        shop.add(numbers=(1, 2), bonus=3)

    assert nodes(constant)["add"].config == {"numbers": [1, 2], "bonus": 3}


@pytest.mark.parametrize(
    ("returned", "bound"),
    [
        (lambda a, b: a, {"double": [("", "")]}),
        (lambda a, b: a["n"], {"double": [("n", "")]}),
        (lambda a, b: {"x": a, "y": b["n"]}, {"double": [("", "x")], "double_2": [("n", "y")]}),
        (lambda a, b: [a, b], {"double": [("", "[0]")], "double_2": [("", "[1]")]}),
        (lambda a, b: {"all": [a, b, a]}, {"double": [("", "all[0]"), ("", "all[2]")], "double_2": [("", "all[1]")]}),
        (lambda a, b: None, {}),
    ],
)
def test_what_the_function_returns_is_the_output_of_the_run(app, shop, returned, bound):
    @app.flow
    def two():
        return returned(shop.double(x=1), shop.double(x=2))

    assert edges(two) == {f"{name} → {RUN_OUTPUT}": pairs for name, pairs in bound.items()}


def test_an_input_can_be_returned(app, shop):
    @app.flow
    def echo(day: str):
        shop.extract(day=day)
        return {"day": day}

    assert edges(echo)[f"{RUN_INPUT} → {RUN_OUTPUT}"] == [("day", "day")]


def test_order_without_a_value_and_trigger_rules(app, shop):
    @app.flow
    def ordered():
        first = shop.double(x=1)
        second = shop.double.after(first)(x=2)
        shop.add.node("last", after=[first, second], trigger_rule="all_done")(numbers=[second])

    assert edges(ordered) == {
        "double → double_2": [],
        "double_2 → last": [("", "numbers[0]")],
        "double → last": [],
    }
    assert nodes(ordered)["last"].trigger_rule is TriggerRule.ALL_DONE
    assert [edge.is_order_only for edge in ordered.definition.edges] == [True, False, True]


def test_settings_of_a_node(app, shop):
    @app.flow
    def settled():
        shop.double.node(queue="slow", priority=1, timeout="5m", max_retries=7)(x=1)

    node = nodes(settled)["double"]
    assert (node.queue, node.priority, node.timeout_seconds, node.max_retries) == ("slow", 1, 300.0, 7)


CONDITIONS = [
    (lambda v: v["ok"], "truthy", None, "ok"),
    (lambda v: ~v["ok"], "falsy", None, "ok"),
    (lambda v: ~~v["ok"], "truthy", None, "ok"),
    (lambda v: v["count"] == 3, "equals", 3, "count"),
    (lambda v: v["count"] != 3, "not_equals", 3, "count"),
    (lambda v: ~(v["count"] == 3), "not_equals", 3, "count"),
    (lambda v: v["count"] < 3, "less", 3, "count"),
    (lambda v: v["count"] <= 3, "less_or_equal", 3, "count"),
    (lambda v: v["count"] > 3, "greater", 3, "count"),
    (lambda v: 3 < v["count"], "greater", 3, "count"),  # noqa: SIM300
    (lambda v: ~(v["count"] < 3), "greater_or_equal", 3, "count"),
    (lambda v: v["what"].is_in(("a", "b")), "in", ["a", "b"], "what"),
    (lambda v: v["rows"].contains(2), "contains", 2, "rows"),
    (lambda v: v == "done", "equals", "done", ""),
]


@pytest.mark.parametrize(("made", "operator", "value", "key"), CONDITIONS)
def test_conditions(app, shop, made, operator, value, key):
    @app.flow
    def checked(day: str):
        found = shop.extract(day=day)
        shop.double.when(made(found))(x=1)

    condition = nodes(checked)["double"].condition
    assert (condition.upstream, condition.output_key) == ("extract", key)
    assert (condition.operator, condition.value) == (operator, value)
    assert edges(checked)["extract → double"] == []


def test_a_condition_on_an_input_needs_no_edge(app, shop):
    @app.flow
    def checked(is_wanted: bool):
        shop.double.when(is_wanted)(x=1)

    assert nodes(checked)["double"].condition.upstream == RUN_INPUT
    assert not checked.definition.edges


def test_map_runs_once_per_item_of_its_one_list(app, shop):
    @app.flow
    def mapped(day: str):
        found = shop.extract(day=day)
        each = shop.double.node(concurrency=2).map(x=found["rows"])
        shop.double.map(x=[1, 2])
        return shop.anything.node(map_over="part").map(part=each, other=found["count"])

    first, second, third = (nodes(mapped)[name] for name in ("double", "double_2", "anything"))
    assert (first.kind, first.map_over, first.concurrency) == (NodeKind.MAP, "x", 2)
    assert (second.kind, second.config) == (NodeKind.MAP, {"x": [1, 2]})
    assert (third.kind, third.map_over) == (NodeKind.MAP, "part")


def test_a_flow_inside_a_flow_is_a_node(app, shop):
    @app.flow
    def inner(day: str, limit: int = 3):
        return shop.extract(day=day)

    @app.flow
    def outer(day: str):
        one = inner(day)
        inner.named("again").when(one["ok"])(day=day, limit=1)

    node = nodes(outer)["inner"]
    assert (node.kind, node.action) == (NodeKind.FLOW, "shop.inner")
    assert nodes(outer)["again"].config == {"limit": 1}


def test_waits_and_approvals(app, shop):
    @app.flow
    def careful(order: int):
        paid = hf.wait_for("order.paid", key=order, timeout="1d", on_timeout="skip")
        go = hf.approval("release", prompt="Ship it?", after=paid)
        shop.double.after(go)(x=1)
        hf.wait_for("order.paid")

    wait, go = nodes(careful)["order.paid"], nodes(careful)["release"]
    assert (wait.kind, wait.action, wait.timeout_seconds) == (NodeKind.WAIT, "order.paid", 86_400.0)
    assert wait.config == {"on_timeout": "skip"}
    assert edges(careful)[f"{RUN_INPUT} → order.paid"] == [("order", "key")]
    assert (go.kind, go.action, go.config) == (NodeKind.WAIT, "approval", {"approval": True, "prompt": "Ship it?"})
    assert list(nodes(careful)) == ["order.paid", "release", "double", "order.paid_2"]


async def test_outside_a_flow_an_action_runs_plainly(app, shop):
    @app.flow
    def traced():
        shop.double(x=1)

    assert traced.definition
    assert shop.extract("monday")["day"] == "monday"
    assert await shop.double(None, 4) == 8


def test_another_thread_does_not_see_the_trace(app, shop):
    seen = []

    @app.flow
    def traced():
        shop.double(x=1)
        other = threading.Thread(target=lambda: seen.append(shop.extract("monday")["day"]))
        other.start()
        other.join()

    assert len(traced.definition.nodes) == 1
    assert seen == ["monday"]


def test_a_helper_function_adds_its_nodes_too(app, shop):
    def twice(value):
        return shop.double(x=shop.double(x=value))

    @app.flow
    def helped(number: int):
        return twice(twice(number))

    assert len(helped.definition.nodes) == 4


def test_an_action_may_get_another_input_without_a_new_version(app, shop):
    """What an action takes is checked, and is no part of the definition."""

    def made(other: hf.App):
        @other.flow
        def one():
            other.actions["shop.work"](x=1)

        return one.definition.digest()

    first, second = hf.App("shop"), hf.App("shop")
    first.action(name="work")(lambda x: x)
    second.action(name="work")(lambda x, y=1: x)
    assert made(first) == made(second)
