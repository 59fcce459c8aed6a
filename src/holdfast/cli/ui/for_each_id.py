"""One operation on several ids: a failure of one does not stop the others, and each result is reported."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli.ui.output import emit_json
from holdfast.cli.ui.shell import CONFLICT, OK, Shell
from holdfast.errors import Conflict, Invalid, NotFound

if TYPE_CHECKING:
    from holdfast.operations.client import OperationClient


async def for_each_id(
    shell: Shell,
    ids: Sequence[str],
    steer: Callable[[OperationClient, str], Awaitable[str]],
    *,
    name: str,
    talk: Callable[[str], str] | None = None,
) -> int:
    """Apply `steer` to each id, print each resulting state, and return the exit code.

    A refusal is printed and decides the exit code: its own code for a single id, a conflict for several. In JSON,
    `name` is the key of the id. An error that would affect all ids ends the loop, after the results so far are printed.
    """
    results: list[dict[str, str]] = []
    codes: list[int] = []
    is_one = len(ids) == 1
    try:
        async with shell.operation_client() as operation_client:
            for object_id in ids:
                try:
                    state = await steer(operation_client, object_id)
                except (Conflict, NotFound, Invalid) as error:
                    codes.append(shell.print_error(error))
                    results.append({name: object_id, "error": error.code})
                    continue
                results.append({name: object_id, "state": state})
                if not shell.is_json:
                    click.echo(f"{object_id}\t{state}")
                    if talk is not None:
                        shell.talk(talk(state))
    finally:
        # Print also the results from before a lost connection.
        if shell.is_json and results and not is_one:
            emit_json(results)
    if codes:
        return codes[0] if is_one else CONFLICT
    if shell.is_json and is_one:
        emit_json(results[0])
    return OK
