"""`holdfast action …`: what workers declared that they can run, and under which rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.complete import action_names
from holdfast.cli.shell import Shell, the_shell
from holdfast.cli.show import Column, emit_json, emit_pairs, emit_rows
from holdfast.cli.tree import Group
from holdfast.cli.words import age, moment
from holdfast.core.duration import human
from holdfast.errors import NotFound

if TYPE_CHECKING:
    from holdfast.dispatcher.look import ActionView


@click.group(cls=Group)
def action() -> None:
    """See what workers can run."""


@action.command("list")
def list_() -> None:
    """List the actions that workers declared."""
    shell = the_shell()
    emit_rows(shell, shell.run(_list(shell)), _columns(), empty="No worker declared an action yet: holdfast work APP")


async def _list(shell: Shell) -> list[ActionView]:
    from holdfast.dispatcher.look import list_actions
    from holdfast.store.catalog import DEFAULT_TENANT_ID

    async with shell.client() as client:
        return await list_actions(client.engine.database, DEFAULT_TENANT_ID)


def _columns() -> list[Column[ActionView]]:
    return [
        Column(title="ACTION", text=lambda row: row.name),
        Column(title="QUEUE", text=lambda row: row.queue),
        Column(title="RETRIES", text=lambda row: str(row.max_retries), right=True),
        Column(
            title="TIMEOUT",
            text=lambda row: "–" if row.timeout_seconds is None else human(row.timeout_seconds),
            plain=lambda row: row.timeout_seconds,
            right=True,
        ),
        Column(title="WORKERS", text=lambda row: str(row.workers), right=True),
        Column(title="VERSION", text=lambda row: row.version or "–"),
        Column(title="DECLARED", text=lambda row: age(row.seen_at), plain=lambda row: row.seen_at.isoformat()),
    ]


@action.command()
@click.argument("name", shell_complete=action_names)
def show(name: str) -> None:
    """Show one action and its whole retry policy."""
    shell = the_shell()
    view = shell.run(_show(shell, name))
    if shell.is_json:
        emit_json(view)
        return
    pairs: list[tuple[str, object]] = [
        ("action", view.name),
        ("queue", view.queue),
        ("workers", view.workers),
        ("version", view.version or "–"),
        ("declared", moment(view.seen_at, utc=shell.utc)),
        *((name, "–" if value is None else value) for name, value in view.policy.items()),
    ]
    emit_pairs(shell, pairs)


async def _show(shell: Shell, name: str) -> ActionView:
    import difflib

    rows = await _list(shell)
    for row in rows:
        if row.name == name:
            return row
    near = difflib.get_close_matches(name, [row.name for row in rows], n=1)
    raise NotFound(
        f"No worker declared the action {name!r}.",
        code="action_not_found",
        advice=f"Did you mean {near[0]}?" if near else "See `holdfast action list`.",
    )
