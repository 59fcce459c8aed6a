"""Flows written in YAML: the same definition as the function, and errors that name file and line."""

from __future__ import annotations

import json

import pytest
from tests.flow.shop import a_shop

import holdfast as hf
from holdfast.authoring.flow.yaml_flow import parse_flow, read_flow
from holdfast.core.flows.graph import FlowDefinition

NIGHTLY = """\
name: shop.nightly
version: 3
inputs:
  - day
  - {name: limit, default: 10}
nodes:
  - name: extract
    action: shop.extract
    bind: {day: $input.day}
  - name: users
    action: shop.extract
    config: {what: users}
    bind: {day: $input.day}
    after: extract
    trigger_rule: all_done
  - name: double
    action: shop.double
    kind: map
    map_over: x
    concurrency: 2
    bind: {x: extract.rows}
  - name: add
    action: shop.add
    config: {"numbers[1]": 5}
    bind: {"numbers[0]": extract.count, "numbers[2]": users.count, bonus: $input.limit}
    when: {value_of: users.count, operator: greater, value: 3}
    timeout: 5m
    max_retries: 7
    queue: slow
    priority: 1
  - name: order.paid
    action: order.paid
    kind: wait
    config: {on_timeout: skip}
    bind: {key: add.sum}
    timeout_seconds: 86400
  - name: release
    action: approval
    kind: wait
    config: {approval: true, prompt: Ship it?}
    after: [order.paid]
  - name: inner
    action: shop.inner
    kind: flow
    bind: {given: {node: order.paid, key: amount}}
    when: release.ok
output:
  total: add.sum
  all: [double, users.rows]
"""


def nightly() -> hf.Flow:
    app = a_shop()
    extract, double, add = (app.actions[f"shop.{name}"] for name in ("extract", "double", "add"))

    @app.flow(name="inner")
    def inner(given: int):
        extract(day="x")

    @app.flow(version=3)
    def nightly(day: str, limit: int = 10):
        orders = extract(day)
        users = extract.node("users", after=orders, trigger_rule="all_done")(day=day, what="users")
        doubled = double.node(concurrency=2).map(x=orders["rows"])
        total = add.node(timeout="5m", max_retries=7, queue="slow", priority=1, when=users["count"] > 3)(
            numbers=[orders["count"], 5, users["count"]], bonus=limit
        )
        paid = hf.wait_for("order.paid", key=total["sum"], timeout="1d", on_timeout="skip")
        go = hf.approval("release", prompt="Ship it?", after=paid)
        inner.when(go["ok"])(given=paid["amount"])
        return {"total": total["sum"], "all": [doubled, users["rows"]]}

    return nightly


def parsed(text: str, **options) -> FlowDefinition:
    return parse_flow(text.encode(), file="x.yaml", **options)


def refused(text: str | bytes) -> hf.Invalid:
    with pytest.raises(hf.Invalid) as caught:
        parse_flow(text.encode() if isinstance(text, str) else text, file="x.yaml")
    return caught.value


def test_a_file_and_a_function_that_say_the_same_are_the_same():
    written, traced = parsed(NIGHTLY), nightly().definition
    assert json.dumps(written.to_json(), indent=1) == json.dumps(traced.to_json(), indent=1)
    assert written == traced and written.digest() == traced.digest()


def test_what_show_prints_can_be_read_again():
    definition = nightly().definition
    assert parsed(json.dumps(definition.to_json())).digest() == definition.digest()


def test_a_flow_of_a_pack_is_named_after_it(tmp_path):
    folder = tmp_path / "packs" / "shop" / "flows"
    folder.mkdir(parents=True)
    (folder / "nightly.yaml").write_text("nodes: [{name: a, action: shop.extract, config: {day: monday}}]")
    (folder / "weekly.yml").write_text("name: other.weekly\nnodes: [{name: a, action: far.away}]")
    (folder / "notes.txt").write_text("no flow")
    app = a_shop()
    assert [flow.name for flow in app.load_flows(folder)] == ["shop.nightly", "other.weekly"]
    assert sorted(app.flows) == ["other.weekly", "shop.nightly"]
    with pytest.raises(hf.Invalid, match="flow_exists"):
        app.load_flows(folder / "nightly.yaml")


def test_a_file_is_checked_against_the_actions_of_its_app(tmp_path):
    path = tmp_path / "f.yaml"
    path.write_text("name: shop.f\nnodes:\n- {name: a, action: shop.extract, config: {dya: monday}}\n")
    assert read_flow(path).nodes[0].config == {"dya": "monday"}
    with pytest.raises(hf.Invalid) as caught:
        a_shop().load_flows(path)
    assert caught.value.code == "DAG_VALIDATION_BINDING_INPUT_KEY_MISSING"
    assert f"{path}:3: Node a has config for dya" in caught.value.detail


def test_values_are_those_of_yaml_1_2():
    text = """
name: f
nodes:
- name: a
  action: a
  config:
    words: [no, on, yes, Off, 2026-01-02, 12:30, 1_000, "5", '6', !!str 7, 0x1f, 1e400x]
    numbers: [1, -2, +3, 1.5, 1e3, .5]
    others: [true, False, null, ~, ]
"""
    config = parsed(text).nodes[0].config
    assert config["words"][:10] == ["no", "on", "yes", "Off", "2026-01-02", "12:30", "1_000", "5", "6", "7"]
    assert config["numbers"] == [1, -2, 3, 1.5, 1000.0, 0.5]
    assert config["others"] == [True, False, None, None]


UNREADABLE = {
    "name: [": "DEFINITION_PARSE_FAILED",
    "name: a\n  b: c\n": "DEFINITION_PARSE_FAILED",
    "name: a\nname: b\nnodes: []": "DEFINITION_PARSE_FAILED",
    "a: &x 1\nb: 2": "DEFINITION_PARSE_FAILED",
    "a: 1\nb: *x": "DEFINITION_PARSE_FAILED",
    "a: !!python/object:os.system x": "DEFINITION_PARSE_FAILED",
    "a: !!int 3": "DEFINITION_PARSE_FAILED",
    "a: .inf": "DEFINITION_PARSE_FAILED",
    "[a]: 1": "DEFINITION_PARSE_FAILED",
    "name: a\n---\nname: b": "DEFINITION_PARSE_FAILED",
    b"name: \xff\xfe": "DEFINITION_PARSE_FAILED",
    "name: a\x00b": "DEFINITION_PARSE_FAILED",
    "": "DEFINITION_INVALID",
    "- a": "DEFINITION_INVALID",
    "just text": "DEFINITION_INVALID",
    "[" * 200_000: "DEFINITION_TOO_DEEP",
    "a: " + "{a: " * 5_000: "DEFINITION_TOO_DEEP",
    "- " * 50_000: "DEFINITION_TOO_DEEP",
}


@pytest.mark.parametrize(("text", "code"), UNREADABLE.items(), ids=[repr(text[:24]) for text in UNREADABLE])
def test_what_cannot_be_read_is_refused_with_its_line(text, code):
    error = refused(text)
    assert error.code == f"DAG_VALIDATION_{code}"
    assert error.detail.startswith(f"x.yaml:{error.fields['line']}: ")


def test_a_file_that_is_too_large_is_refused_before_it_is_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.authoring.flow.yaml_flow.DEFINITION_BYTES_MAX", 1_000)
    path = tmp_path / "f.yaml"
    path.write_text("# " + "x" * 2_000)
    with pytest.raises(hf.Invalid) as caught:
        read_flow(path)
    assert (caught.value.code, caught.value.fields["limit"]) == ("DAG_VALIDATION_DEFINITION_TOO_LARGE", 1_000)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(hf.Invalid, match=r"missing\.yaml cannot be read") as caught:
        read_flow(tmp_path / "missing.yaml")
    assert caught.value.code == "file_unreadable"


HEAD = "name: f\nnodes:\n- {name: a, action: a}\n"
MISSHAPEN = [
    ("nodes: []", 1, "no name"),
    ("name: f\nnodez: []", 2, "Did you mean nodes"),
    ("name: f\nnodes: {a: 1}", 2, "nodes is not a list"),
    ("name: f\nnodes:\n- x", 3, "has no name"),
    ("name: f\nnodes:\n- {action: x}", 3, "has no name"),
    (HEAD + "- name: b\n  action: b\n  bimd: {}", 6, "Did you mean bind"),
    (HEAD + "- name: b\n  action: b\n  bind: [a]", 6, "bind is not a mapping"),
    (HEAD + "- name: b\n  action: b\n  bind:\n    x: 5", 7, "5 is not a source"),
    (HEAD + "- name: b\n  action: b\n  after: {a: 1}", 6, "after is not a list of names"),
    (HEAD + "- name: b\n  action: b\n  timeout: soon", 6, "soon"),
    (HEAD + "- name: b\n  action: b\n  timeout: 5m\n  timeout_seconds: 3", 6, "timeout and timeout_seconds"),
    (HEAD + "- name: b\n  action: b\n  when: {value_of: a, oprator: less}", 6, "Did you mean operator"),
    (HEAD + "- name: b\n  action: b\n  when: a\n  condition: {upstream: a}", 6, "when and condition"),
    (HEAD + "- name: b\n  action: b\n  config: [1]", 4, "is malformed"),
    (HEAD + "- name: b\n  action: b\n  kind: loop", 4, "is malformed"),
    (HEAD + "- name: b\n  action: b\n  trigger_rule: never", 4, "is malformed"),
    (HEAD + "edges:\n- {upstream: a}", 5, "has no upstream and no downstream"),
    (HEAD + "edges:\n- {upstream: a, downstream: b, bindings: {rows: x}}", 5, "is malformed"),
    (HEAD + "inputs: {day: 1}", 4, "inputs is not a list"),
    (HEAD + "inputs:\n- 7", 5, "7 is not an input"),
    (HEAD + "inputs:\n- {name: day, defualt: 7}", 5, "Did you mean default"),
]


@pytest.mark.parametrize(("text", "line", "said"), MISSHAPEN, ids=[said for _, _, said in MISSHAPEN])
def test_what_is_no_flow_is_refused_with_line_and_advice(text, line, said):
    error = refused(text)
    assert (error.code, error.fields["line"]) == ("DAG_VALIDATION_DEFINITION_INVALID", line)
    assert said in str(error)


def test_an_unknown_operator_is_refused_with_the_known_ones():
    error = refused(HEAD + "- name: b\n  action: b\n  when: {value_of: a, operator: above}")
    assert error.code == "DAG_VALIDATION_CONDITION_INVALID"
    assert "greater_or_equal" in error.advice


def test_a_source_is_the_longest_name_that_fits():
    text = """
name: f
nodes:
- {name: a, action: x}
- {name: a.b, action: x}
- {name: n, action: x, bind: {one: a.b, two: a.b.c, three: a.c.d, four: {node: a, key: b}}}
output: a.b
"""
    bound = {
        binding.input_key: (edge.upstream, binding.output_key)
        for edge in parsed(text).edges
        for binding in edge.bindings
    }
    assert bound == {
        "one": ("a.b", ""), "two": ("a.b", "c"), "three": ("a", "c.d"), "four": ("a", "b"), "": ("a.b", ""),
    }  # fmt: skip


def test_declared_list_ports_append_in_edge_order():
    text = """
name: f
nodes:
- {name: a, action: x}
- {name: b, action: x}
- {name: n, action: y, inputs: [{key: images, is_list: true}, size], outputs: [rows]}
edges:
- {upstream: b, downstream: n, bindings: [["", images]]}
- {upstream: a, downstream: n, bindings: [["", images], [size, size]]}
output: n.rows
"""
    assert parsed(text).node("n").inputs[0].is_list


def test_a_file_is_checked_against_the_flows_of_its_app_and_of_the_other_files(tmp_path):
    (tmp_path / "inner.yaml").write_text(
        "name: shop.inner\ninputs: [{name: day}]\nnodes: [{name: a, action: shop.extract, config: {day: x}}]"
    )
    outer = tmp_path / "a_outer.yaml"
    outer.write_text("name: shop.outer\nnodes:\n- {name: b, kind: flow, action: shop.inner, config: {dya: x}}\n")
    with pytest.raises(hf.Invalid, match="dya") as caught:
        a_shop().load_flows(tmp_path)
    assert "a_outer.yaml:3" in caught.value.detail
    app = a_shop()
    app.load_flows(tmp_path / "inner.yaml")
    with pytest.raises(hf.Invalid, match="dya"):
        app.load_flows(outer)
