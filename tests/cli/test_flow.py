"""`holdfast flow …` against a real database, an app and files."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from holdfast.authoring.app import App
from holdfast.authoring.flow.yaml_flow import parse_flow
from holdfast.store.catalog import DEFAULT_TENANT_ID

FLOWS = """
import holdfast as hf

app = hf.App("shop")

@app.action
def extract(day: str) -> dict: ...

@app.action
def double(x: int) -> int: ...

@app.flow(version=2)
def nightly(day: str, limit: int = 10):
    rows = extract(day)
    each = double.map(x=rows["rows"])
    go = hf.approval("release", timeout="1d", after=each)
    double.node("last", when=rows["count"] > 3, after=go)(x=limit)

@app.flow
def tiny():
    double(x=1)
"""


@pytest.fixture
def app_ref(tmp_path) -> str:
    path = tmp_path / "cli_flows.py"
    path.write_text(FLOWS)
    return f"{path}:app"


@pytest.fixture
def stored(seed):
    """Two versions of one flow in the database."""
    app = App("shop")
    double = app.action(name="double")(lambda x: x)
    versions = [app.flow(name=name, version=version) for name, version in (("nightly", 1), ("other", 2))]
    first, second = (make(lambda: double(x=double(x=1))) for make in versions)

    async def prepare(harness):
        flows = harness.engine.catalog.flows
        await flows.keep(DEFAULT_TENANT_ID, first.definition)
        await flows.keep(DEFAULT_TENANT_ID, second.definition)

    seed(prepare)
    return app


def test_there_are_no_flows_yet(holdfast):
    assert holdfast("flow", "list", "-o", "json").json == []
    assert "a worker declares those of its app" in holdfast("flow", "list").err


def test_stored_flows_are_listed(holdfast, stored):
    rows = holdfast("flow", "list", "-o", "json").json
    listed = [(row["name"], row["version"], row["nodes"], row["open_runs"]) for row in rows]
    assert listed == [("shop.nightly", 1, 2, 0), ("shop.other", 2, 2, 0)]
    assert "shop.nightly\t1\t2\t0" in holdfast("flow", "list").out


def test_flows_of_an_app_are_listed_without_a_database(bare, app_ref):
    rows = bare("flow", "list", "--app", app_ref, "-o", "json").json
    assert [(row["name"], row["version"], row["nodes"]) for row in rows] == [
        ("shop.nightly", 2, 4),
        ("shop.tiny", 1, 1),
    ]


def test_a_stored_flow_is_shown_whole(holdfast, stored):
    shown = holdfast("flow", "show", "shop.nightly", "-o", "json").json
    assert shown == stored.flows["shop.nightly"].definition.to_json()
    out = holdfast("flow", "show", "shop.nightly", "-o", "table").out
    assert "double_2  shop.double  double" in out


def test_a_flow_of_an_app_is_shown_by_its_short_name(bare, app_ref):
    out = bare("flow", "show", "nightly", "--app", app_ref, "-o", "table").out
    assert "day, limit = 10" in out
    assert "map shop.double" in out and "wait approval" in out and "if extract.count > 3" in out


def test_a_flow_that_is_not_there(holdfast, stored, app_ref):
    for arguments in (("shop.nightyl",), ("shop.nightly", "--version", "7"), ("nightyl", "--app", app_ref)):
        ran = holdfast("flow", "show", *arguments)
        assert (ran.code, "flow_not_found" in ran.err) == (3, True)
    assert "Did you mean shop.nightly?" in holdfast("flow", "show", "shop.nightyl").err


def test_a_flow_is_drawn_no_wider_than_asked(bare, holdfast, stored, app_ref):
    drawn = bare("flow", "graph", "nightly", "--app", app_ref, "--width", "110").out
    assert "each of x" in drawn and "waits, 1d" in drawn and "▶" in drawn
    assert max(map(len, drawn.splitlines())) <= 110
    assert "double_2" in holdfast("flow", "graph", "shop.nightly").out


def test_a_flow_is_drawn_as_svg(bare, app_ref, tmp_path):
    file = tmp_path / "nightly.svg"
    assert bare("flow", "graph", "nightly", "--app", app_ref, "--svg", str(file)).code == 0
    assert ElementTree.fromstring(file.read_text()).get("viewBox")
    ran = bare("flow", "graph", "nightly", "--app", app_ref, "--svg", str(tmp_path / "no" / "x.svg"))
    assert (ran.code, "file_unwritable" in ran.err) == (2, True)


def test_a_drawing_as_json_has_places_and_edges(bare, app_ref):
    drawn = bare("flow", "graph", "nightly", "--app", app_ref, "-o", "json").json
    assert [node["node"] for node in drawn["nodes"]] == ["extract", "double", "release", "last"]
    assert {"upstream": "double", "downstream": "release"}.items() <= drawn["edges"][1].items()


def test_a_sound_file_passes(bare, app_ref, tmp_path):
    file = tmp_path / "weekly.yaml"
    file.write_text("name: shop.weekly\nnodes: [{name: a, action: shop.extract, config: {day: monday}}]")
    digest = parse_flow(file.read_bytes(), file="f").digest()
    ran = bare("flow", "check", str(file), "--app", app_ref, "-o", "json")
    assert (ran.code, ran.json) == (
        0,
        [{"file": str(file), "name": "shop.weekly", "version": 1, "nodes": 1, "edges": 0, "digest": digest}],
    )
    assert "shop.weekly" in bare("flow", "graph", str(file), "-o", "json").out


def test_every_file_of_a_folder_is_checked_and_every_fault_told(bare, app_ref, tmp_path):
    folder = tmp_path / "flows"
    folder.mkdir()
    (folder / "a.yaml").write_text("nodes: [{name: a, action: shop.extract, config: {day: x}}]")
    (folder / "b.yaml").write_text("nodes:\n- {name: a, action: shop.extract, config: {dya: x}}")
    (folder / "c.yaml").write_text("nodes:\n- {name: a, action: shop.extrcat}")
    (folder / "d.yaml").write_text("nodes: [")
    ran = bare("flow", "check", str(folder), "--app", app_ref)
    assert ran.code != 0 and len(ran.out.splitlines()) == 1
    assert "b.yaml:2: Node a has config for dya" in ran.err
    assert "Did you mean shop.extract?" in ran.err
    assert "DAG_VALIDATION_DEFINITION_PARSE_FAILED" in ran.err
    assert bare("flow", "check", str(tmp_path / "missing.yaml")).code == 2


def test_a_worker_with_a_changed_flow_does_not_start(program, holdfast, tmp_path, app_ref):
    path = tmp_path / "changing.py"
    path.write_text(FLOWS)
    app = f"{path}:app"
    worker = program.start("work", app)
    while not holdfast("worker", "list", "-o", "json").json:
        assert worker.poll() is None
    worker.terminate()
    assert worker.wait(30) == 0
    assert [row["name"] for row in holdfast("flow", "list", "-o", "json").json] == ["shop.nightly", "shop.tiny"]
    path.write_text(FLOWS.replace("> 3", "> 4"))
    ran = program.run("work", app)
    assert ran.code == 2
    assert "flow_version_changed" in ran.err and "node last has another condition" in ran.err


def test_flows_inside_flows_are_checked_like_actions(bare, app_ref, tmp_path):
    """Their names and their inputs, also where one file of a folder runs the flow of another."""
    folder = tmp_path / "flows"
    folder.mkdir()
    (folder / "inner.yaml").write_text(
        "name: shop.inner\ninputs: [{name: day}]\nnodes: [{name: a, action: shop.extract, config: {day: x}}]"
    )
    outer = "name: shop.outer\nnodes:\n- {name: b, kind: flow, action: NAME, config: {KEY: monday}}\n"
    checked = {}
    for name, key in (("shop.inner", "day"), ("shop.nope", "day"), ("shop.inner", "dya")):
        (folder / "outer.yaml").write_text(outer.replace("NAME", name).replace("KEY", key))
        checked[name, key] = bare("flow", "check", str(folder), "--app", app_ref)
    assert checked["shop.inner", "day"].code == 0, checked["shop.inner", "day"].err
    nope, wrong = checked["shop.nope", "day"], checked["shop.inner", "dya"]
    assert (nope.code != 0, "flow_not_found" in nope.err, "shop.nope" in nope.err) == (True, True, True)
    assert (wrong.code != 0, "dya" in wrong.err, "outer.yaml" in wrong.err) == (True, True, True)
