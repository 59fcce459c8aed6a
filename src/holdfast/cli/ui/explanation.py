"""Output of an explanation: the headline, the checks, the evidence, and suggested commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.ui.output import emit_json
from holdfast.cli.ui.words import hue, state_text, strip_control_chars

if TYPE_CHECKING:
    from holdfast.cli.ui.shell import Shell
    from holdfast.operations.explanation import ExplanationView


def emit_why(shell: Shell, explanation: ExplanationView) -> None:
    """Print an explanation."""
    if shell.is_json:
        emit_json(explanation)
    elif not shell.is_table:
        click.echo(strip_control_chars(explanation.headline))
    else:
        _print_why(shell, explanation)


def _print_why(shell: Shell, explanation: ExplanationView) -> None:
    head = click.style(state_text(explanation.state), fg=hue(explanation.state) or None, bold=True)
    lines = [f"{head}  {strip_control_chars(explanation.headline)}"]
    for check in explanation.checks:
        mark = click.style("✓", fg="cyan") if check.ok else click.style("✗", fg="red")
        lines.append(f"  {mark} {strip_control_chars(check.text)}")
    lines += [f"  · {strip_control_chars(line)}" for line in explanation.evidence]
    lines += [f"  → {click.style(move, bold=True)}" for move in explanation.moves]
    for line in lines:
        click.echo(line, color=shell.has_colour())
