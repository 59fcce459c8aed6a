"""`holdfast run graph`: the flow of a run as a drawing, with where each node stands."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.complete import run_ids
from holdfast.cli.shell import Shell, the_shell
from holdfast.cli.show import emit_json
from holdfast.cli.tree import Command

if TYPE_CHECKING:
    from holdfast.store.flows import Snapshot

WIDTH_ELSEWHERE = 120


@click.command(cls=Command)
@click.argument("run_id", shell_complete=run_ids)
@click.option("--svg", is_flag=True, help="Write an SVG picture instead.")
@click.option("--width", type=click.IntRange(20), help="At most this many columns; the terminal's unless given.")
def graph(run_id: str, svg: bool, width: int | None) -> None:
    """Draw the flow of a run with the state of each node."""
    shell = the_shell()
    row, snapshot, nodes = shell.run(_read(shell, run_id))
    names = [node.name for node in snapshot.plan.nodes]
    states = {names[node["node_no"]]: node["state"] for node in nodes}
    if shell.is_json:
        edges = [(up, down) for down, ups in enumerate(snapshot.plan.upstream) for up in ups]
        emit_json(
            {
                "run_id": run_id,
                "flow": row["flow"],
                "version": row["version"],
                "state": row["state"],
                "nodes": [{"node": name, "state": states[name]} for name in names],
                "edges": [{"upstream": names[up], "downstream": names[down]} for up, down in edges],
            }
        )
        return
    click.echo(_drawn(snapshot, nodes, states, svg=svg, width=width), nl=False)


async def _read(shell: Shell, run_id: str) -> tuple[Any, Snapshot, list[Any]]:
    from holdfast.client.client import task_number
    from holdfast.dispatcher.show_runs import read_run
    from holdfast.store.catalog import DEFAULT_TENANT_ID

    async with shell.client() as client:
        return await read_run(client.engine.database, client.engine.catalog, DEFAULT_TENANT_ID, task_number(run_id))


def _drawn(snapshot: Snapshot, nodes: list[Any], states: dict[str, str], *, svg: bool, width: int | None) -> str:
    from holdfast.core.draw_svg import draw_svg
    from holdfast.core.draw_text import draw_text
    from holdfast.core.layout import layout

    drawing = layout(snapshot.plan.definition)
    if svg:
        return draw_svg(drawing, states)
    labels = {snapshot.plan.nodes[node["node_no"]].name: _label(node) for node in nodes}
    return draw_text(drawing, labels, width=width or _width())


def _label(node: Any) -> str:
    """`✓ completed`, with items done or the attempt where there was more than one."""
    from holdfast.core.look import state_line

    if node["items"] is not None:
        return f"{state_line(node['state'])} {node['items'] - (node['items_pending'] or 0)}/{node['items']}"
    return state_line(node["state"]) + (f" #{node['attempt']}" if node["attempt"] > 1 else "")


def _width() -> int:
    return shutil.get_terminal_size((WIDTH_ELSEWHERE, 24)).columns if sys.stdout.isatty() else WIDTH_ELSEWHERE
