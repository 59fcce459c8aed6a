"""Output of data: a table for people, tab-separated lines for pipes, JSON for programs, decided in one function.

JSON is written as encoded, never wrapped or coloured. Control characters in user data are removed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from holdfast.cli.ui.shell import Shell
from holdfast.cli.ui.table import Column as Column
from holdfast.cli.ui.table import FittedTable
from holdfast.cli.ui.words import hue, one_line, state_text, strip_control_chars
from holdfast.errors import Invalid

T = TypeVar("T")


def state_column(text: Callable[[Any], str] = lambda row: state_text(row.state)) -> Column[Any]:
    """Return the state column: an icon, a word and a colour for people, the word alone for pipes."""
    return Column(title="STATE", text=text, plain=lambda row: row.state, hue=lambda row: hue(row.state))


def emit_rows(shell: Shell, rows: Sequence[T], columns: Sequence[Column[T]], *, empty: str) -> None:
    """Print a list in the chosen format; an empty one is `[]` in JSON and a sentence on stderr otherwise."""
    if shell.is_json:
        emit_json(rows)
        return
    if not rows:
        shell.talk(empty)
        return
    if shell.is_table:
        _emit_table(shell, rows, columns)
        return
    for row in rows:
        click.echo("\t".join(_cell(column, row) for column in columns))


def emit_json(value: Any) -> None:
    """Print one JSON value, indented, on stdout."""
    import msgspec

    encoded = msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2)
    click.echo(encoded.decode())


SVG_FILE = click.Path(dir_okay=False, allow_dash=True, path_type=Path)
SVG_HELP = "Write an SVG to this file; - is stdout."


def write_svg(shell: Shell, file: Path, text: str) -> None:
    """Write an SVG to a file or to stdout."""
    if str(file) == "-":
        click.echo(text, nl=False)
        return
    try:
        file.write_text(text)
    except OSError as error:
        raise Invalid(
            f"{file} cannot be written: {error.strerror}.", code="file_unwritable", advice="Check the path."
        ) from error
    shell.talk(f"Wrote {file}.")


def emit_pairs(shell: Shell, pairs: Iterable[tuple[str, object]], *, hues: dict[str, str] | None = None) -> None:
    """Print `name: value` lines, aligned for people, tab-separated for pipes."""
    pairs = [(name, strip_control_chars(value)) for name, value in pairs]
    if not shell.is_table:
        for name, value in pairs:
            click.echo(f"{name}\t{one_line(value)}")
        return
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        label = click.style(f"{name:<{width}}", dim=True)
        shown = click.style(value, fg=hues[name]) if hues and hues.get(name) else value
        click.echo(f"{label}  {shown}", color=shell.has_colour())


def _cell(column: Column[T], row: T) -> str:
    if column.plain is None:
        return one_line(column.text(row))
    value = column.plain(row)
    return "" if value is None else one_line(value)


def _emit_table(shell: Shell, rows: Sequence[T], columns: Sequence[Column[T]]) -> None:
    from rich.console import Console

    console = Console(no_color=not shell.has_colour(), highlight=False, soft_wrap=False, width=_width())
    console.print(table_of(rows, columns), crop=False)


def table_of(rows: Sequence[T], columns: Sequence[Column[T]]) -> FittedTable[T]:
    """Return a table for a rich console."""
    return FittedTable(rows, columns)


def _width() -> int | None:
    """Return the table width: a table written to a file keeps whole cells, not those of an 80-column terminal."""
    return None if sys.stdout.isatty() else 250
