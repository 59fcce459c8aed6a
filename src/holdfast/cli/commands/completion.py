"""`holdfast completion SHELL`: a completion script for commands, queues and tasks."""

from __future__ import annotations

import click

from holdfast.cli.ui.command_tree import Command

_HINTS = {
    "bash": 'eval "$(holdfast completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(holdfast completion zsh)" in ~/.zshrc',
    "fish": "holdfast completion fish | source in ~/.config/fish/config.fish",
}


@click.command(cls=Command, epilog="Put one of these into your start-up file: " + "; ".join(_HINTS.values()) + ".")
@click.argument("shell_name", metavar="bash|zsh|fish", type=click.Choice(sorted(_HINTS)))
@click.pass_context
def completion(ctx: click.Context, shell_name: str) -> None:
    """Print a completion script for your shell."""
    from click.shell_completion import BashComplete, FishComplete, ZshComplete

    kind = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}[shell_name]
    root = ctx.find_root().command
    click.echo(kind(root, {}, "holdfast", "_HOLDFAST_COMPLETE").source())
