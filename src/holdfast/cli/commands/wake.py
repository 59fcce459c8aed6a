"""`holdfast wake …`: whether hints are written for SQS or Redis, and the state of the carrier."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.ui.command_tree import Group
from holdfast.cli.ui.output import emit_json
from holdfast.cli.ui.shell import Shell, the_shell
from holdfast.core.values.duration import human

if TYPE_CHECKING:
    from holdfast.engine.wakeups.outbox import WakeView


@click.group(cls=Group)
def wake() -> None:
    """Turn wake-up hints for SQS or Redis on or off."""


@wake.command()
def show() -> None:
    """Show whether hints are written, how many are outstanding, and the state of the carrier."""
    from holdfast.operations.administration import show_wake
    from holdfast.operations.shared_types import Empty

    shell = the_shell()
    _emit(shell, shell.ask(show_wake, Empty()))


@wake.command()
@click.option(
    "--hints-max",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="Maximum outstanding hints per queue.  [default: the setting, 100]",
)
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
def on(hints_max: int | None, reason: str) -> None:
    """Write a hint with every change that makes a task claimable.

    Needs the owner of the schema, once, and a server or workers with loops whose HOLDFAST_WAKE names the carrier: they
    send the hints. Briefly locks the hot table.
    """
    from holdfast.operations.administration import WriteHints, write_hints

    shell = the_shell()
    _emit(shell, shell.ask(write_hints, WriteHints(hints_max=hints_max, reason=reason)))


@wake.command()
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
def off(reason: str) -> None:
    """Stop writing hints, and delete the outstanding ones. Workers continue with NOTIFY and polling."""
    from holdfast.operations.administration import StopHints, stop_hints

    shell = the_shell()
    _emit(shell, shell.ask(stop_hints, StopHints(reason=reason)))


def _emit(shell: Shell, view: WakeView) -> None:
    if shell.is_json:
        emit_json(view)
        return
    if not view.is_on:
        click.echo("hints\toff")
        return
    click.echo(f"hints\ton\t{view.outstanding} outstanding, at most {view.hints_max} per queue")
    if view.away_seconds is not None:
        click.echo(f"{view.carrier}\taway\tfor {human(view.away_seconds)}: {view.away_detail}")
    elif view.carrier:
        click.echo(f"{view.carrier}\twell")
