"""`holdfast flow …`: flows that workers declared, flows of an app, and flows in files."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.ui.command_tree import Group
from holdfast.cli.ui.completions import flow_names
from holdfast.cli.ui.output import SVG_FILE, SVG_HELP, Column, emit_json, emit_pairs, emit_rows, write_svg
from holdfast.cli.ui.shell import OK, Shell, the_shell
from holdfast.cli.ui.words import age
from holdfast.core.values.duration import human
from holdfast.errors import HoldfastError, NotFound

if TYPE_CHECKING:
    from holdfast.authoring.app import App
    from holdfast.core.drawing.layout import Drawing
    from holdfast.core.flows.graph import FlowDefinition
    from holdfast.core.flows.known_ports import Ports
    from holdfast.core.flows.nodes import Node
    from holdfast.engine.queries.flows import FlowView

WIDTH_PIPED = 120

_CONDITIONS = {
    "truthy": "if {subject}",
    "falsy": "if not {subject}",
    "equals": "if {subject} = {value}",
    "not_equals": "if {subject} ≠ {value}",
    "less": "if {subject} < {value}",
    "less_or_equal": "if {subject} ≤ {value}",
    "greater": "if {subject} > {value}",
    "greater_or_equal": "if {subject} ≥ {value}",
    "in": "if {subject} in {value}",
    "contains": "if {value} in {subject}",
}

APP = click.option("--app", "app_ref", metavar="APP", help="Take flows from this app instead of the database.")
VERSION = click.option("--version", type=click.IntRange(1), help="Version of the flow.  [default: the newest]")


@click.group(cls=Group)
def flow() -> None:
    """List, draw and check flows."""


@flow.command("list")
@APP
def list_(app_ref: str | None) -> None:
    """List the flows that workers declared or clients started, or those of --app."""
    shell = the_shell()
    if app_ref is not None:
        from holdfast.authoring.flow.registry import every_version

        own = [version.definition for version in every_version(shell.load_app(app_ref).flows)]
        emit_rows(
            shell, [_summary(definition) for definition in own], _summary_columns(), empty=f"{app_ref} has no flows."
        )
        return
    from holdfast.operations.flows import list_flows
    from holdfast.operations.shared_types import ListNames

    rows = shell.ask_all(list_flows, ListNames(), lambda page: page.flows)
    emit_rows(shell, rows, _columns(), empty="No flows yet: a worker declares those of its app when it starts.")


def _columns() -> list[Column[FlowView]]:
    return [
        Column(title="FLOW", text=lambda row: row.name),
        Column(title="VERSION", text=lambda row: str(row.version), right=True),
        Column(title="NODES", text=lambda row: str(row.nodes), right=True),
        Column(title="OPEN RUNS", text=lambda row: str(row.open_runs), right=True),
        Column(title="DECLARED", text=lambda row: age(row.created_at), plain=lambda row: row.created_at.isoformat()),
    ]


def _summary(definition: FlowDefinition) -> dict[str, Any]:
    return {
        "name": definition.name,
        "version": definition.version,
        "nodes": len(definition.nodes),
        "edges": len(definition.edges),
        "digest": definition.digest(),
    }


def _summary_columns(*, with_file: bool = False) -> list[Column[dict[str, Any]]]:
    file: list[Column[dict[str, Any]]] = [Column(title="FILE", text=lambda row: str(row["file"]))]
    return [
        *(file if with_file else []),
        Column(title="FLOW", text=lambda row: str(row["name"])),
        Column(title="VERSION", text=lambda row: str(row["version"]), right=True),
        Column(title="NODES", text=lambda row: str(row["nodes"]), right=True),
        Column(title="EDGES", text=lambda row: str(row["edges"]), right=True),
        Column(title="DIGEST", text=lambda row: str(row["digest"])[:12], plain=lambda row: row["digest"]),
    ]


@flow.command()
@click.argument("name", shell_complete=flow_names)
@VERSION
@APP
def show(name: str, version: int | None, app_ref: str | None) -> None:
    """Show one flow: its inputs and its nodes. NAME may be a YAML file. As JSON it is the whole definition."""
    shell = the_shell()
    definition = _definition(shell, name, version, app_ref)
    if shell.is_json:
        emit_json(definition.to_json())
        return
    inputs = [
        flow_input.name if flow_input.is_required else f"{flow_input.name} = {flow_input.default!r}"
        for flow_input in definition.inputs
    ]
    graph = definition.graph()
    emit_pairs(
        shell,
        [
            ("flow", definition.name),
            ("version", definition.version),
            ("digest", definition.digest()),
            ("inputs", ", ".join(inputs) or "–"),
            ("nodes", len(definition.nodes)),
        ],
    )
    columns: list[Column[Node]] = [
        Column(title="NODE", text=lambda node: node.name),
        Column(
            title="RUNS",
            text=lambda node: node.action if node.kind == "task" else f"{node.kind} {node.action}",
            shrinks=True,
        ),
        Column(title="AFTER", text=lambda node: ", ".join(graph.upstream[node.name]) or "–", shrinks=True),
        Column(title="ONLY", text=lambda node: _only(node) or "–", shrinks=True),
    ]
    if shell.is_table:
        click.echo()
    emit_rows(shell, definition.nodes, columns, empty="")


@flow.command()
@click.argument("name", shell_complete=flow_names)
@VERSION
@APP
@click.option("--svg", "svg_file", type=SVG_FILE, help=SVG_HELP)
@click.option("--width", type=click.IntRange(20), help="Width in columns.  [default: the terminal's]")
def graph(name: str, version: int | None, app_ref: str | None, svg_file: Path | None, width: int | None) -> None:
    """Draw one flow on the terminal, or as an SVG. NAME may be a YAML file."""
    from holdfast.core.drawing.layout import layout
    from holdfast.core.drawing.svg import draw_svg
    from holdfast.core.drawing.text import draw_text

    shell = the_shell()
    definition = _definition(shell, name, version, app_ref)
    drawing = layout(definition)
    if svg_file is not None:
        write_svg(shell, svg_file, draw_svg(drawing))
        return
    if shell.is_json:
        emit_json(_drawn(definition, drawing))
        return
    columns = width or (shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH_PIPED)
    labels = {node.name: label for node in definition.nodes if (label := _label(node))}
    click.echo(draw_text(drawing, labels, width=columns), nl=False)


@flow.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--app", "app_ref", metavar="APP", help="Also check names and inputs against the actions of this app.")
def check(files: tuple[Path, ...], app_ref: str | None) -> None:
    """Check flows in YAML files, or in folders of them, before anything runs."""
    from holdfast.authoring.flow.yaml_flow import flow_files, ports_of

    shell = the_shell()
    app = None if app_ref is None else shell.load_app(app_ref)
    sound: list[dict[str, Any]] = []
    worst = OK
    named = [file for path in files for file in flow_files(path)]
    flows = {} if app is None else ports_of([*app.flows.values(), *_readable(named)])
    for file in named:
        try:
            sound.append({"file": str(file), **_summary(_checked(file, app, flows))})
        except HoldfastError as error:
            worst = shell.print_error(error)
    emit_rows(shell, sound, _summary_columns(with_file=True), empty="No flow is valid.")
    raise SystemExit(worst)


def _readable(files: Sequence[Path]) -> list[FlowDefinition]:
    """Return the readable flows of the files, which may run each other. Errors in the others are reported later."""
    from holdfast.authoring.flow.yaml_flow import read_flow

    found = []
    for file in files:
        with contextlib.suppress(HoldfastError):
            found.append(read_flow(file))
    return found


def _checked(file: Path, app: App | None, flows: Ports) -> FlowDefinition:
    from holdfast.authoring.flow.yaml_flow import read_flow
    from holdfast.core.flows.nodes import NodeKind

    if app is None:
        return read_flow(file)
    definition = read_flow(file, {name: action.signature.ports for name, action in app.actions.items()}, flows)
    for node in definition.nodes:
        if node.kind in (NodeKind.TASK, NodeKind.MAP) and node.action not in app.actions:
            raise NotFound(
                f"{file}: node {node.name} runs {node.action}, which is not an action of {app.name}.",
                code="action_not_found",
                advice=_near(node.action, list(app.actions), "See `holdfast action list`."),
            )
        if node.kind is NodeKind.FLOW and node.action not in flows:
            raise NotFound(
                f"{file}: node {node.name} runs {node.action}, which is neither a flow of {app.name} nor of "
                "these files.",
                code="flow_not_found",
                advice=_near(str(node.action), list(flows), "See `holdfast flow list --app …`."),
            )
    return definition


def _definition(shell: Shell, name: str, version: int | None, app_ref: str | None) -> FlowDefinition:
    if name.endswith((".yaml", ".yml")):
        from holdfast.authoring.flow.yaml_flow import read_flow

        return read_flow(name)
    if app_ref is None:
        return _stored(shell, name, version)
    app = shell.load_app(app_ref)
    newest = app.flows.get(name) or app.flows.get(f"{app.name}.{name}")
    found = newest if newest is None or version is None else app.flows.versions.get((newest.name, version))
    if found is None:
        raise NotFound(
            f"{app_ref} has no flow {name}{'' if version is None else f' version {version}'}.",
            code="flow_not_found",
            advice=_near(name, list(app.flows), f"It has {', '.join(app.flows) or 'none'}."),
        )
    return found.definition


def _stored(shell: Shell, name: str, version: int | None) -> FlowDefinition:
    from holdfast.core.flows.graph import FlowDefinition
    from holdfast.operations.flows import OfFlow, show_flow

    return FlowDefinition.from_json(shell.ask(show_flow, OfFlow(name=name, version=version)).definition)


def _near(name: str, names: Sequence[str], otherwise: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, names, n=1)
    return f"Did you mean {near[0]}?" if near else otherwise


def _only(node: Node) -> str:
    """Return the condition under which a node runs, unless it simply runs after its upstreams."""
    parts = [] if node.trigger_rule == "all_success" else [node.trigger_rule.value]
    if (condition := node.condition) is not None:
        subject = ".".join(part for part in (condition.upstream, condition.output_key) if part)
        parts.append(_CONDITIONS[condition.operator].format(subject=subject, value=condition.value))
    return ", ".join(parts)


def _label(node: Node) -> str:
    """Return the second line of a node's box: its kind and condition, where they are special."""
    until = "" if node.timeout_seconds is None else f", {human(node.timeout_seconds)} at most"
    kinds = {"map": f"each of {node.map_over}", "flow": f"flow {node.action}", "wait": f"waits{until}"}
    return ", ".join(part for part in (kinds.get(node.kind, ""), _only(node)) if part)


def _drawn(definition: FlowDefinition, drawing: Drawing) -> dict[str, Any]:
    return {
        "name": definition.name,
        "version": definition.version,
        "width": drawing.width,
        "height": drawing.height,
        "nodes": [{"node": box.node, "layer": box.layer, "x": box.x, "y": box.y} for box in drawing.boxes],
        "edges": [
            {"upstream": route.upstream, "downstream": route.downstream, "points": route.points}
            for route in drawing.routes
        ],
    }
