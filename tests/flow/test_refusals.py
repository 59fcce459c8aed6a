"""Every rule about graphs and bindings through what people write: a Python flow and a YAML file.

Each refusal has its own code, names its node and edge, and leaves nothing behind.
"""

from __future__ import annotations

import pytest
from tests.flow.shop import a_shop

import holdfast as hf
from holdfast.authoring.flow.yaml_flow import parse_flow

A = "- {name: a, action: shop.extract}\n"
B = "- {name: b, action: shop.work}\n"

YAML = {
    "a cycle": (
        f"{A}- {{name: b, action: x, bind: {{x: c}}}}\n- {{name: c, action: x, bind: {{x: b}}}}\n",
        "CYCLE", "c → b → c", 5,
    ),
    "an unknown upstream": (f"{A}- {{name: b, action: x, bind: {{x: z.rows}}}}\n",
        "NODE_NOT_FOUND", "z → b", 4),
    "an unknown node to come after": (f"{A}- {{name: b, action: x, after: z}}\n",
        "NODE_NOT_FOUND", "z → b", 4),
    "an unknown downstream": (f"{A}edges:\n- {{upstream: a, downstream: z, bindings: [[rows, x]]}}\n",
        "DOWNSTREAM_NODE_NOT_FOUND", "a → z", 5),
    "an edge to itself": (f"{A}edges:\n- {{upstream: a, downstream: a, is_order_only: true}}\n",
        "EDGE_SELF", "a → a", 5),
    "an edge there twice": (
        f"{A}- {{name: b, action: x, after: a}}\nedges:\n- {{upstream: a, downstream: b, bindings: [[rows, y]]}}\n",
        "EDGE_DUPLICATE", "a → b", 6,
    ),
    "an edge without a binding": (f"{A}{B}edges:\n- {{upstream: a, downstream: b}}\n",
        "BINDING_REQUIRED", "a → b", 6),
    "an order-only edge with a binding": (
        f"{A}{B}edges:\n- {{upstream: a, downstream: b, is_order_only: true, bindings: [[rows, x]]}}\n",
        "EDGE_INVALID", "a → b", 6,
    ),
    "two nodes of one name": (f"{A}{A}", "NODE_DUPLICATE", "a", 3),
    "two values for one input": (
        f"{A}- {{name: b, action: x, config: {{x: 1}}, bind: {{x: a.rows}}}}\n",
        "BINDING_INPUT_KEY_CONFLICT", "b", 4,
    ),
    "two values for one place of a list": (
        f"{A}- {{name: b, action: x, config: {{'x[0]': 1}}, bind: {{x: [a.rows]}}}}\n",
        "BINDING_INPUT_KEY_CONFLICT", "b", 4,
    ),
    "a required port that nothing gives": (
        f"{A}- {{name: b, action: x, inputs: [{{key: x, is_required: true}}]}}\n",
        "BINDING_REQUIRED", "b", 4,
    ),
    "a required port that may get nothing": (
        f"{A}- {{name: b, action: x, trigger_rule: all_done, bind: {{x: a.rows}},"
        " inputs: [{key: x, is_required: true}]}\n",
        "BINDING_MAY_BE_ABSENT", "b", 4,
    ),
    "a port that the node does not have": (
        f"{A}- {{name: b, action: x, inputs: [y], bind: {{x: a.rows}}}}\n",
        "BINDING_INPUT_KEY_MISSING", "a → b", 4,
    ),
    "an index on a port that is no list": (
        f"{A}- {{name: b, action: x, inputs: [x], bind: {{x: [a.rows]}}}}\n",
        "BINDING_INPUT_KEY_MISSING", "a → b", 4,
    ),
    "an input key that is none": (f"{A}- {{name: b, action: x, bind: {{'x[y]': a.rows}}}}\n",
        "BINDING_INPUT_KEY_MISSING", "a → b", 4),
    "a config for a port that the node does not have": (
        f"{A}- {{name: b, action: x, inputs: [x], config: {{y: 1}}}}\n",
        "BINDING_INPUT_KEY_MISSING", "b", 4,
    ),
    "a list port with a config that is no list": (
        f"{A}- {{name: b, action: x, inputs: [{{key: x, is_list: true}}], config: {{x: 1}}}}\n",
        "BINDING_LIST_PAYLOAD_INVALID", "b", 4,
    ),
    "an output that the node does not give": (
        "- {name: a, action: x, outputs: [rows]}\n- {name: b, action: x, bind: {x: a.users}}\n",
        "BINDING_OUTPUT_KEY_MISSING", "a → b", 4,
    ),
    "a key of a list": (
        "- {name: a, action: x, kind: map, map_over: x, config: {x: [1]}}\n- {name: b, action: x, bind: {x: a.k}}\n",
        "BINDING_OUTPUT_KEY_MISSING", "a → b", 4,
    ),
    "an input that the flow does not have": (f"{A}- {{name: b, action: x, bind: {{x: $input.day}}}}\n",
        "BINDING_OUTPUT_KEY_MISSING", "$input → b", 4),
    "a condition on what is not upstream": (
        f"{A}- {{name: b, action: x, condition: {{upstream: a}}}}\n", "CONDITION_INVALID", "b", 4,
    ),
    "a map without its list": (f"{A}- {{name: b, action: x, kind: map, map_over: x}}\n",
        "BINDING_REQUIRED", "b", 4),
    "a map over nothing": (f"{A}- {{name: b, action: x, kind: map}}\n", "NODE_INVALID", "b", 4),
    "concurrency without a map": (f"{A}- {{name: b, action: x, concurrency: 3}}\n", "NODE_INVALID", "b", 4),
    "a queue for a wait": (f"{A}- {{name: b, action: x, kind: wait, queue: q}}\n", "NODE_INVALID", "b", 4),
    "a retry of a flow": (f"{A}- {{name: b, action: x, kind: flow, max_retries: 1}}\n", "NODE_INVALID", "b", 4),
    "a wait told something else": (f"{A}- {{name: b, action: x, kind: wait, config: {{on_timeout: wait}}}}\n",
        "NODE_INVALID", "b", 4),
    "an event that only a person can send": (f"{A}- {{name: b, action: 'approval:x', kind: wait}}\n",
        "NODE_INVALID", "b", 4),
    "a priority out of bounds": (f"{A}- {{name: b, action: x, priority: 12}}\n", "NODE_INVALID", "b", 4),
    "a name that is none": (f"{A}- {{name: b c, action: x}}\n", "NAME_INVALID", "b c", 4),
    "an action that is none": (f"{A}- {{name: b}}\n", "NAME_INVALID", "b", 4),
    "a port that is no key": (f"{A}- {{name: b, action: x, inputs: ['x[0]']}}\n", "PORT_INVALID", "b", 4),
    "an output there twice": (f"{A}{B}output: {{x: a, 'x[0]': b}}\nedges:\n"
        "- {upstream: a, downstream: $output, bindings: [['', y]]}\n", "EDGE_DUPLICATE", "a → $output", 7),
    "an output whole and in part": (
        f"{A}{B}edges:\n- {{upstream: a, downstream: $output, bindings: [['', '']]}}\n"
        "- {upstream: b, downstream: $output, bindings: [['', y]]}\n",
        "BINDING_INPUT_KEY_CONFLICT", "$output", None,
    ),
    "no nodes": ("[]\n", "NODES_EMPTY", "no nodes", None),
}  # fmt: skip


@pytest.mark.parametrize(("text", "code", "named", "line"), YAML.values(), ids=YAML)
def test_a_file_is_refused_with_code_place_and_line(text, code, named, line):
    with pytest.raises(hf.Invalid) as caught:
        parse_flow(f"name: shop.f\nnodes:{' ' if text[0] == '[' else chr(10)}{text}".encode(), file="f.yaml")
    assert caught.value.code == f"DAG_VALIDATION_{code}"
    assert named in caught.value.detail
    assert caught.value.fields["file"] == "f.yaml"
    if line is not None:
        assert caught.value.fields["line"] == line


def call(name, **given):
    return lambda app, found: app.actions[f"shop.{name}"](**given)


PYTHON = {
    "a parameter that nothing gives": (call("extract"), "BINDING_REQUIRED", "extract_2"),
    "a parameter that the action does not have": (
        lambda app, found: app.actions["shop.double"](y=found["rows"], x=1),
        "BINDING_INPUT_KEY_MISSING", "extract → double",
    ),
    "a constant that the action does not take": (call("double", x=1, y=2), "BINDING_INPUT_KEY_MISSING", "double"),
    "too many values": (
        lambda app, found: app.actions["shop.double"](1, 2), "BINDING_INPUT_KEY_MISSING", "shop.double",
    ),
    "a value by place and by name": (
        lambda app, found: app.actions["shop.double"](1, x=2), "BINDING_INPUT_KEY_CONFLICT", "shop.double",
    ),
    "two nodes of one name": (
        lambda app, found: app.actions["shop.double"].named("extract")(x=1), "NODE_DUPLICATE", "extract",
    ),
    "a name that is none": (
        lambda app, found: app.actions["shop.double"].named("to the left")(x=1), "NAME_INVALID", "to the left",
    ),
    "a key of a map": (
        lambda app, found: app.actions["shop.anything"](x=app.actions["shop.double"].map(x=[1])["n"]),
        "BINDING_OUTPUT_KEY_MISSING", "double → anything",
    ),
    "a map over no list": (
        lambda app, found: app.actions["shop.double"].map(x=3), "MAP_LIST_INVALID", "shop.double",
    ),
    "a map over two lists": (
        lambda app, found: app.actions["shop.anything"].map(x=found["rows"], y=[1]), "MAP_LIST_INVALID", "x, y",
    ),
    "a map of a flow": (
        lambda app, found: app.flow(name="inner")(lambda: None).named("i").map(x=[1]), "NODE_INVALID", "shop.inner",
    ),
    "concurrency without a map": (
        lambda app, found: app.actions["shop.double"].node(concurrency=2)(x=1), "NODE_INVALID", "shop.double",
    ),
    "an unknown trigger rule": (
        lambda app, found: app.actions["shop.double"].node(trigger_rule="never")(x=1), "NODE_INVALID", "never",
    ),
    "a queue for a flow": (
        lambda app, found: app.flow(name="inner")(lambda: None).node(queue="q")(), "NODE_INVALID", "inner",
    ),
    "a priority out of bounds": (
        lambda app, found: app.actions["shop.double"].node(priority=12)(x=1), "NODE_INVALID", "double",
    ),
    "after an input": (
        lambda app, found: app.actions["shop.double"].after("extract")(x=1), "EDGE_INVALID", "extract",
    ),
    "an output key that is none": (lambda app, found: app.actions["shop.anything"](x=found["\n"]),
        "BINDING_OUTPUT_KEY_MISSING", "extract → anything"),
    "an event without a name": (lambda app, found: hf.wait_for("no name"), "NAME_INVALID", "no name"),
    "an event that only a person can send": (
        lambda app, found: hf.wait_for("approval", key=1), "NODE_INVALID", "approval",
    ),
    "a wait told something else": (lambda app, found: hf.wait_for("e", on_timeout="wait"), "NODE_INVALID", "wait"),
    "an input the inner flow does not have": (
        lambda app, found: app.flow(name="inner")(lambda day: None)(dya=1), "BINDING_INPUT_KEY_MISSING", "inner",
    ),
    "an input the inner flow needs": (
        lambda app, found: app.flow(name="inner")(lambda day: None)(), "BINDING_REQUIRED", "inner",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "code", "named"), PYTHON.values(), ids=PYTHON)
def test_a_function_is_refused_with_code_and_place(body, code, named):
    app = a_shop()

    @app.flow
    def tried():
        body(app, app.actions["shop.extract"](day="monday"))

    with pytest.raises(hf.Invalid) as caught:
        assert tried.definition
    assert caught.value.code == f"DAG_VALIDATION_{code}"
    assert named in caught.value.detail
    assert caught.value.detail.startswith(f"test_refusals.py:{caught.value.fields['line']}: ")


def test_an_error_names_the_line_of_the_call_that_made_the_node():
    app = a_shop()

    def tried():
        found = app.actions["shop.extract"](day="monday")
        app.actions["shop.double"](x=1)
        app.actions["shop.publish"](reprot=found)

    with pytest.raises(hf.Invalid) as caught:
        assert app.flow(tried).definition
    assert caught.value.fields["edge"] == "extract → publish"
    assert caught.value.fields["line"] == tried.__code__.co_firstlineno + 3


def test_an_exception_of_the_function_is_a_broken_flow():
    app = a_shop()
    flow = app.flow(name="broken")(lambda: app.actions["shop.missing"](x=1))
    with pytest.raises(
        hf.Invalid, match=r"test_refusals\.py:\d+: Flow shop\.broken cannot be traced: KeyError"
    ) as caught:
        assert flow.definition
    assert caught.value.code == "flow_broken"


@pytest.mark.parametrize("version", [0, -1, True, "3", 1.5, 2**31, None])
def test_a_version_is_a_positive_number(version):
    app = a_shop()
    flow = app.flow(name="f", version=version)(lambda: app.actions["shop.double"](x=1))
    with pytest.raises(hf.Invalid, match="DAG_VALIDATION_VERSION_INVALID"):
        assert flow.definition


def refused_at_once(make) -> str:
    with pytest.raises(hf.Invalid) as caught:
        make(a_shop())
    return caught.value.code


def test_what_is_no_flow_is_refused_where_it_is_written():
    async def coroutine(): ...

    def generator():
        yield 1

    for function in (coroutine, generator, lambda *days: 1, lambda **days: 1, lambda day, /: 1):
        assert refused_at_once(lambda app, function=function: app.flow(name="f")(function)) == "invalid_flow"
    assert refused_at_once(lambda app: app.flow(name="f")(lambda day=hf: 1)) == "DAG_VALIDATION_CONFIG_INVALID"
    assert refused_at_once(lambda app: [app.flow(name="f")(lambda: 1) for _ in range(2)]) == "flow_exists"
    assert refused_at_once(lambda app: app.flow(lambda: 1)) == "invalid_name"


def test_what_belongs_into_a_flow_is_refused_outside():
    app = a_shop()
    flow = app.flow(name="f")(lambda: app.actions["shop.double"](x=1))
    for use in (
        lambda: flow(),
        lambda: flow.named("x")(),
        lambda: app.actions["shop.double"].named("x")(x=1),
        lambda: app.actions["shop.double"].map(x=[1]),
        lambda: hf.wait_for("event"),
        lambda: hf.approval("release"),
    ):
        with pytest.raises(hf.Invalid) as caught:
            use()
        assert caught.value.code == "outside_a_flow"


async def test_a_refused_flow_leaves_nothing_behind(holdfast_url):
    app = a_shop()
    app.configure(hf.Settings(url=holdfast_url))

    @app.flow
    def broken(day: str):
        app.actions["shop.double"](y=app.actions["shop.extract"](day=day))

    @app.flow
    def sound(day: str):
        app.actions["shop.extract"](day=day)

    async with app.client() as client:
        for flow, given in ((broken, {"day": "x"}), (sound, {}), (sound, {"day": 1, "dya": 2})):
            with pytest.raises(hf.Invalid):
                await client.start(flow, **given)
        for table in ("flow", "snapshot", "run", "live", "idempotency"):
            assert await client.engine.database.fetchval(f"select count(*) from holdfast.{table}") == 0
