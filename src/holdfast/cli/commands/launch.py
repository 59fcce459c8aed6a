"""`holdfast launch …`: workers that launchers started, and their states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.ui.command_tree import Group
from holdfast.cli.ui.output import Column, emit_rows
from holdfast.cli.ui.shell import the_shell
from holdfast.cli.ui.words import age

if TYPE_CHECKING:
    from holdfast.engine.launching.launch import LaunchView


@click.group(cls=Group)
def launch() -> None:
    """List the workers that launchers started."""


@launch.command("list")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="At most this many.")
def list_(limit: int) -> None:
    """List launches that have not ended, oldest first.

    launching: reserved and requested from the platform; launched: its worker has not attached yet; attached: it runs
    the task; failed: it will be launched again after a pause.
    """
    from holdfast.operations.workers import ListLaunches, list_launches

    shell = the_shell()
    rows = shell.ask(list_launches, ListLaunches(limit=limit)).launches
    emit_rows(shell, rows, _columns(), empty="Nothing is being launched.")


def _columns() -> list[Column[LaunchView]]:
    return [
        Column(title="TASK", text=lambda row: row.task_id),
        Column(title="ATTEMPT", text=lambda row: str(row.attempt), right=True),
        Column(title="ACTION", text=lambda row: row.action or "–", shrinks=True),
        Column(title="LAUNCHER", text=lambda row: row.launcher),
        Column(title="SLOT", text=lambda row: "–" if row.slot is None else str(row.slot), right=True, optional=True),
        Column(title="STATE", text=lambda row: row.state),
        Column(
            title="SINCE",
            text=lambda row: age(row.created_at),
            plain=lambda row: row.created_at.isoformat(),
            optional=True,
        ),
        Column(title="FAILED", text=lambda row: str(row.failures), right=True, optional=True),
        Column(title="HANDLE", text=lambda row: row.handle or "–", shrinks=True, optional=True),
        Column(title="NOTE", text=lambda row: row.error, stretch=True),
    ]
