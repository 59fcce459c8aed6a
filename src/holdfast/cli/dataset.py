"""`holdfast dataset …`: what datasets hold, and which version readers see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.shell import Shell, actor, the_shell
from holdfast.cli.show import Column, emit_json, emit_rows
from holdfast.cli.tree import Group
from holdfast.cli.words import age, compact, harmless, one_line

if TYPE_CHECKING:
    from holdfast.dispatcher.datasets import CommitView, GenerationView

_HUES = {"current": "cyan", "building": "blue", "rolled back": "yellow"}


@click.group(cls=Group)
def dataset() -> None:
    """See datasets, cut over to a new version, roll one back."""


@dataset.command("list")
def list_() -> None:
    """List datasets with their versions."""
    shell = the_shell()
    rows = shell.run(_list(shell, None))
    emit_rows(shell, rows, _columns(), empty="No datasets yet: one appears with the first worker that declares it.")


async def _list(shell: Shell, name: str | None) -> list[GenerationView]:
    async with shell.client() as client:
        return await client.datasets.generations(name)


def _columns() -> list[Column[GenerationView]]:
    def count(title: str, name: str, colour: str = "") -> Column[GenerationView]:
        return Column(
            title=title,
            text=lambda row: compact(getattr(row, name)),
            plain=lambda row: getattr(row, name),
            hue=lambda row: colour if getattr(row, name) else "",
            right=True,
        )

    return [
        Column(title="DATASET", text=lambda row: row.name),
        Column(title="VERSION", text=lambda row: str(row.version), right=True),
        Column(title="STATE", text=lambda row: row.state, hue=lambda row: _HUES.get(row.state, "")),
        count("ROWS", "rows"),
        count("UNFINISHED", "unfinished", "blue"),
        count("FAILED", "failed", "red"),
        Column(title="CUT OVER", text=lambda row: age(row.cut_over_at), plain=lambda row: row.cut_over_at),
        Column(title="READ FROM", text=lambda row: row.view, stretch=True),
    ]


@dataset.command()
@click.argument("name")
@click.option("--commits", metavar="N", type=click.IntRange(0, 1000), default=10, help="How many commits to show.")
def show(name: str, commits: int) -> None:
    """Show one dataset: its versions, columns and last commits."""
    shell = the_shell()
    generations, last = shell.run(_show(shell, name, commits))
    if shell.is_json:
        emit_json({"name": name, "generations": generations, "commits": last})
        return
    emit_rows(shell, generations, _columns(), empty="")
    newest = generations[0]
    key = ", ".join(newest.key) or "none"
    columns = ", ".join(f"{column} {kind}" for column, kind in newest.columns.items())
    click.echo(f"columns\t{columns}\nkey\t{key}\ntable\t{newest.table}")
    if last:
        emit_rows(shell, last, _commit_columns(), empty="")


async def _show(shell: Shell, name: str, commits: int) -> tuple[list[GenerationView], list[CommitView]]:
    async with shell.client() as client:
        generations = await client.datasets.generations(name)
        return generations, await client.datasets.commits(name, limit=commits)


def _commit_columns() -> list[Column[CommitView]]:
    return [
        Column(title="TASK", text=lambda row: row.task_id),
        Column(title="VERSION", text=lambda row: str(row.version), right=True),
        Column(title="MODE", text=lambda row: row.mode),
        Column(title="ADDED", text=lambda row: f"{row.rows_added}/{row.rows_given}", right=True),
        Column(title="REMOVED", text=lambda row: str(row.rows_removed), right=True),
        Column(title="COMMITTED", text=lambda row: age(row.committed_at), plain=lambda row: row.committed_at),
        Column(title="PARTITION", text=lambda row: one_line(row.partition) or "–", stretch=True),
    ]


_version = click.option("--version", "version", metavar="N", type=click.IntRange(1), required=True, help="Which one.")
_reason = click.option("--reason", metavar="TEXT", default="", help="Why, for whoever wonders.")


@dataset.command()
@click.argument("name")
@_version
@click.option("--force", is_flag=True, help="Although some of its builds are unfinished or failed.")
@_reason
def cutover(name: str, version: int, force: bool, reason: str) -> None:
    """Let readers see a version, at once and whole; also an earlier one that is still kept."""
    shell = the_shell()
    is_changed = shell.run(_steer(shell, "cut_over", name, version, force=force, reason=reason))
    _tell(shell, name, version, "current" if is_changed else "current already")


@dataset.command()
@click.argument("name")
@_version
@click.option("--keep", is_flag=True, help="Keep its tables until `holdfast dataset drop`.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_reason
def rollback(name: str, version: int, keep: bool, yes: bool, reason: str) -> None:
    """Take a version out of use: cancel its unfinished tasks and drop its tables.

    If it is the current one, readers see the one before from now on.
    """
    shell = the_shell()
    shell.confirm(f"Roll back version {version} of {harmless(name)}?", yes=yes)
    shown = shell.run(_steer(shell, "roll_back", name, version, keep=keep, reason=reason))
    _tell(shell, name, version, "rolled back" if shown is None else f"rolled back, version {shown} is current")


@dataset.command()
@click.argument("name")
@_version
@click.option("--yes", is_flag=True, help="Do not ask.")
@_reason
def drop(name: str, version: int, yes: bool, reason: str) -> None:
    """Drop the tables of a version that is superseded or was rolled back and kept."""
    shell = the_shell()
    shell.confirm(f"Drop version {version} of {harmless(name)} with all its rows?", yes=yes)
    shell.run(_steer(shell, "drop", name, version, reason=reason))
    _tell(shell, name, version, "dropped")


async def _steer(shell: Shell, verb: str, name: str, version: int, **options: Any) -> Any:
    async with shell.client() as client:
        return await getattr(client.datasets, verb)(name, version, actor=actor(), **options)


def _tell(shell: Shell, name: str, version: int, word: str) -> None:
    if shell.is_json:
        emit_json({"name": name, "version": version, "done": word})
        return
    click.echo(f"{name}\t{version}\t{word}")
