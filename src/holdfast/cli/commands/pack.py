"""`holdfast pack …`: check packs before they run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.ui.command_tree import Group
from holdfast.cli.ui.output import emit_json
from holdfast.cli.ui.shell import FAILED, OK, Shell, the_shell
from holdfast.errors import NotFound

if TYPE_CHECKING:
    from holdfast.authoring.packs.load import Pack


@click.group(cls=Group)
def pack() -> None:
    """Check packs of YAML actions."""


@pack.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--no-import", "is_static", is_flag=True, help="Run no code of the pack.")
def check(folder: Path, is_static: bool) -> None:
    """List the problems of a pack, or of every pack in DIR, by file and line.

    Exit code 0 if there are none, 1 if there are some, 3 if there is no pack.
    """
    from holdfast.authoring.packs.load import find_packs, read_pack

    shell = the_shell()
    folders = find_packs(folder)
    if not folders:
        raise NotFound(f"There is no pack in {folder}.", code="pack_not_found", advice="A pack has a pack.yaml.")
    packs = [read_pack(pack_folder, imports=not is_static) for pack_folder in folders]
    _emit(shell, packs)
    raise SystemExit(FAILED if any(checked.errors for checked in packs) else OK)


def _emit(shell: Shell, packs: list[Pack]) -> None:
    if shell.is_json:
        emit_json(
            [
                {
                    "pack": checked.folder.name if checked.app is None else checked.app.name,
                    "actions": [] if checked.app is None else sorted(checked.app.actions),
                    "problems": [
                        {
                            "file": problem.file,
                            "line": problem.line,
                            "text": problem.text,
                            "advice": problem.advice,
                            "severity": "warning" if problem.is_warning else "error",
                        }
                        for problem in sorted(checked.problems)
                    ],
                }
                for checked in packs
            ]
        )
        return
    for checked in packs:
        for problem in sorted(checked.problems):
            click.echo(f"{problem}{' (warning)' if problem.is_warning else ''}")
        if checked.app is not None and not checked.errors:
            click.echo(f"{checked.app.name}\tok\t{', '.join(sorted(checked.app.actions)) or 'no actions'}")
