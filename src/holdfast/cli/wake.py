"""`holdfast wake …`: whether hints are written for SQS or Redis, and how they fare."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.shell import Shell, actor, the_shell
from holdfast.cli.show import emit_json
from holdfast.cli.tree import Group
from holdfast.core.duration import human

if TYPE_CHECKING:
    from holdfast.dispatcher.hints import WakeView


@click.group(cls=Group)
def wake() -> None:
    """Write hints for SQS or Redis, or stop to."""


@wake.command()
def show() -> None:
    """Show whether hints are written, how many are outstanding, and how the carrier is."""
    shell = the_shell()
    _emit(shell, shell.run(_show(shell)))


@wake.command()
@click.option(
    "--hints-max",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="Outstanding per queue.  [default: the setting, 100]",
)
@click.option("--reason", metavar="TEXT", default="", help="Why, for whoever wonders.")
def on(hints_max: int | None, reason: str) -> None:
    """Write a hint with every change that makes a task claimable.

    Needs the owner of the schema, once, and a server or workers with loops whose HOLDFAST_WAKE is sqs or redis: they
    send the hints. Takes a lock on the hot table for a moment.
    """
    shell = the_shell()
    most = hints_max or shell.settings().wake.hints_max
    _emit(shell, shell.run(_write(shell, True, most, reason)))


@wake.command()
@click.option("--reason", metavar="TEXT", default="", help="Why, for whoever wonders.")
def off(reason: str) -> None:
    """Write no more hints, and forget those that wait. Workers go on by NOTIFY and polling."""
    shell = the_shell()
    _emit(shell, shell.run(_write(shell, False, None, reason)))


async def _show(shell: Shell) -> WakeView:
    from holdfast.dispatcher.hints import read_wake

    async with shell.client() as client:
        return await read_wake(client.engine.database)


async def _write(shell: Shell, wanted: bool, hints_max: int | None, reason: str) -> WakeView:
    from holdfast.dispatcher.hints import write_hints

    async with shell.client() as client:
        return await write_hints(client.engine, wanted, hints_max=hints_max, actor=actor(), reason=reason)


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
