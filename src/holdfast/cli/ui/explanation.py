"""How an explanation is printed: the headline, what was checked, the evidence, and what to type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.ui.output import emit_json
from holdfast.cli.ui.words import harmless, hue, state_text

if TYPE_CHECKING:
    from holdfast.cli.ui.shell import Shell
    from holdfast.operations.explanation import Why


def emit_why(shell: Shell, explanation: Why) -> None:
    """Print an explanation."""
    if shell.is_json:
        emit_json(explanation)
    elif not shell.is_table:
        click.echo(harmless(explanation.headline))
    else:
        _print_why(shell, explanation)


def _print_why(shell: Shell, explanation: Why) -> None:
    head = click.style(state_text(explanation.state), fg=hue(explanation.state) or None, bold=True)
    lines = [f"{head}  {harmless(explanation.headline)}"]
    for check in explanation.checks:
        mark = click.style("✓", fg="cyan") if check.ok else click.style("✗", fg="red")
        lines.append(f"  {mark} {harmless(check.text)}")
    lines += [f"  · {harmless(line)}" for line in explanation.evidence]
    lines += [f"  → {click.style(move, bold=True)}" for move in explanation.moves]
    for line in lines:
        click.echo(line, color=shell.has_colour())
