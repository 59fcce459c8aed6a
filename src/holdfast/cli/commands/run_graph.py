"""`holdfast run graph`: the flow of a run as a drawing, with the state of each node."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.ui.command_tree import Command
from holdfast.cli.ui.completions import run_ids
from holdfast.cli.ui.output import SVG_FILE, SVG_HELP, emit_json, write_svg
from holdfast.cli.ui.shell import the_shell

if TYPE_CHECKING:
    from holdfast.operations.runs import GraphNode, RunGraph

WIDTH_ELSEWHERE = 120


@click.command(cls=Command)
@click.argument("run_id", shell_complete=run_ids)
@click.option("--svg", "svg_file", type=SVG_FILE, help=SVG_HELP)
@click.option("--width", type=click.IntRange(20), help="Maximum width in columns.  [default: the terminal's]")
def graph(run_id: str, svg_file: Path | None, width: int | None) -> None:
    """Draw the flow of a run with the state of each node."""
    from holdfast.operations.runs import OfRun, graph_run

    shell = the_shell()
    found = shell.ask(graph_run, OfRun(run_id=run_id))
    if svg_file is not None:
        write_svg(shell, svg_file, _drawn(found, svg=True, width=width))
        return
    if shell.is_json:
        emit_json(
            {
                "run_id": found.run_id,
                "flow": found.flow,
                "version": found.version,
                "state": found.state,
                "nodes": [{"node": node.node, "state": node.state} for node in found.nodes],
                "edges": found.edges,
            }
        )
        return
    click.echo(_drawn(found, svg=False, width=width), nl=False)


def _drawn(found: RunGraph, *, svg: bool, width: int | None) -> str:
    from holdfast.core.drawing.layout import layout
    from holdfast.core.drawing.svg import draw_svg
    from holdfast.core.drawing.text import draw_text
    from holdfast.core.flows.graph import FlowDefinition

    drawing = layout(FlowDefinition.from_json(found.definition))
    if svg:
        return draw_svg(drawing, {node.node: "waiting" if node.is_waiting else node.state for node in found.nodes})
    return draw_text(drawing, {node.node: _label(node) for node in found.nodes}, width=width or _width())


def _label(node: GraphNode) -> str:
    """Return for example `✓ completed`, with the items done, or the attempt if there was more than one."""
    from holdfast.core.drawing.state_style import state_line

    if node.items is not None:
        return f"{state_line(node.state)} {node.items - (node.items_pending or 0)}/{node.items}"
    if node.is_waiting:
        return state_line("waiting")
    return state_line(node.state) + (f" #{node.attempt}" if node.attempt > 1 else "")


def _width() -> int:
    return shutil.get_terminal_size((WIDTH_ELSEWHERE, 24)).columns if sys.stdout.isatty() else WIDTH_ELSEWHERE
