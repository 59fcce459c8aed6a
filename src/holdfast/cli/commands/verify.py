"""`holdfast verify`: check the invariants on the live database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.ui.command_tree import Command
from holdfast.cli.ui.output import emit_json
from holdfast.cli.ui.shell import FAILED, OK, Shell, the_shell
from holdfast.cli.ui.words import strip_control_chars

if TYPE_CHECKING:
    from holdfast.engine.queries.verify import Violation


@click.command(cls=Command)
def verify() -> None:
    """Check the invariants on the live database; exit 1 if one does not hold."""
    from holdfast.operations.administration import verify_invariants
    from holdfast.operations.shared_types import Empty

    shell = the_shell()
    with shell.busy("Checking the invariants"):
        found = shell.ask(verify_invariants, Empty())
    if shell.is_json:
        emit_json({"checked": found.checked, "violations": found.violations, "warnings": found.warnings})
    else:
        for mark, colour, violations in (("✕", "red", found.violations), ("◔", "yellow", found.warnings)):
            for violation in violations:
                _print(shell, click.style(mark, fg=colour), violation)
        word = "all hold" if found.is_sound else f"{len(found.violations)} broken"
        shell.talk(f"{found.checked} invariants checked, {word}.")
    raise SystemExit(OK if found.is_sound else FAILED)


def _print(shell: Shell, mark: str, violation: Violation) -> None:
    click.echo(f"{mark} {violation.name}: {violation.sentence} ({violation.count} found)", color=shell.has_colour())
    for evidence in violation.evidence:
        click.echo(f"    {strip_control_chars(evidence)}")
