"""`holdfast dataset …`: the contents of datasets, and which version readers see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.ui.command_tree import Group
from holdfast.cli.ui.output import Column, emit_json, emit_rows
from holdfast.cli.ui.shell import Shell, the_shell
from holdfast.cli.ui.words import age, compact, one_line, strip_control_chars

if TYPE_CHECKING:
    from holdfast.engine.datasets.declare import CommitView, GenerationView

_HUES = {"current": "cyan", "building": "blue", "rolled back": "yellow"}


@click.group(cls=Group)
def dataset() -> None:
    """List datasets, cut over to a new version, roll one back."""


@dataset.command("list")
def list_() -> None:
    """List datasets with their versions."""
    from holdfast.operations.datasets import list_datasets
    from holdfast.operations.shared_types import ListNames

    shell = the_shell()
    rows = shell.ask_all(list_datasets, ListNames(), lambda page: page.generations)
    emit_rows(shell, rows, _columns(), empty="No datasets yet: one appears with the first worker that declares it.")


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
        Column(
            title="CUT OVER", text=lambda row: age(row.cut_over_at), plain=lambda row: row.cut_over_at, optional=True
        ),
        Column(title="READ FROM", text=lambda row: row.view, stretch=True),
    ]


@dataset.command()
@click.argument("name")
@click.option("--commits", metavar="N", type=click.IntRange(0, 1000), default=10, help="Number of commits to show.")
def show(name: str, commits: int) -> None:
    """Show one dataset: its versions, columns and last commits."""
    from holdfast.operations.datasets import ShowDataset, show_dataset

    shell = the_shell()
    found = shell.ask(show_dataset, ShowDataset(name=name, commits=commits))
    if shell.is_json:
        emit_json(found)
        return
    generations, last = found.generations, found.commits
    emit_rows(shell, generations, _columns(), empty="")
    newest = generations[0]
    key = ", ".join(newest.key) or "none"
    columns = ", ".join(f"{column} {kind}" for column, kind in newest.columns.items())
    click.echo(f"columns\t{columns}\nkey\t{key}\ntable\t{newest.table}")
    if last:
        emit_rows(shell, last, _commit_columns(), empty="")


def _commit_columns() -> list[Column[CommitView]]:
    return [
        Column(title="TASK", text=lambda row: row.task_id),
        Column(title="VERSION", text=lambda row: str(row.version), right=True),
        Column(title="MODE", text=lambda row: row.mode),
        Column(title="ADDED", text=lambda row: f"{row.rows_added}/{row.rows_given}", right=True, optional=True),
        Column(title="REMOVED", text=lambda row: str(row.rows_removed), right=True, optional=True),
        Column(title="COMMITTED", text=lambda row: age(row.committed_at), plain=lambda row: row.committed_at),
        Column(title="PARTITION", text=lambda row: one_line(row.partition) or "–", stretch=True),
    ]


_version = click.option(
    "--version", "version", metavar="N", type=click.IntRange(1), required=True, help="Version of the dataset."
)
_reason = click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")


@dataset.command()
@click.argument("name")
@_version
@click.option("--force", is_flag=True, help="Cut over even if some of its builds are unfinished or failed.")
@_reason
def cutover(name: str, version: int, force: bool, reason: str) -> None:
    """Switch readers to a version, atomically; also to an earlier one that is still kept."""
    from holdfast.operations.datasets import CutOver, cut_over

    shell = the_shell()
    done = shell.ask(cut_over, CutOver(name=name, version=version, force=force, reason=reason))
    _tell(shell, name, version, "current" if done.is_changed else "already current")


@dataset.command()
@click.argument("name")
@_version
@click.option("--keep", is_flag=True, help="Keep its tables until `holdfast dataset drop`.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_reason
def rollback(name: str, version: int, keep: bool, yes: bool, reason: str) -> None:
    """Take a version out of use: cancel its unfinished tasks and drop its tables.

    If it is the current version, readers see the previous one from now on.
    """
    from holdfast.operations.datasets import RollBack, roll_back

    shell = the_shell()
    shell.confirm(f"Roll back version {version} of {strip_control_chars(name)}?", yes=yes)
    shown = shell.ask(roll_back, RollBack(name=name, version=version, keep=keep, reason=reason)).current
    _tell(shell, name, version, "rolled back" if shown is None else f"rolled back, version {shown} is current")


@dataset.command()
@click.argument("name")
@_version
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_reason
def drop(name: str, version: int, yes: bool, reason: str) -> None:
    """Drop the tables of a version that is superseded or was rolled back and kept."""
    from holdfast.operations.datasets import DropVersion, drop_version

    shell = the_shell()
    shell.confirm(f"Drop version {version} of {strip_control_chars(name)} with all its rows?", yes=yes)
    shell.ask(drop_version, DropVersion(name=name, version=version, reason=reason))
    _tell(shell, name, version, "dropped")


def _tell(shell: Shell, name: str, version: int, word: str) -> None:
    if shell.is_json:
        emit_json({"name": name, "version": version, "done": word})
        return
    click.echo(f"{name}\t{version}\t{word}")
