"""The same to several, by their ids: each gets its turn whatever became of the others, and each is told."""

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
    """Steer one after the other, tell the state that each has then, and give the exit code.

    A refusal is told and counts at the end: alone with its own code, among several as a conflict. In JSON, `name` is
    what the id is called. Trouble that would meet all the others too ends it, after what was done has been told.
    """
    told: list[dict[str, str]] = []
    codes: list[int] = []
    is_one = len(ids) == 1
    try:
        async with shell.operation_client() as operation_client:
            for one in ids:
                try:
                    state = await steer(operation_client, one)
                except (Conflict, NotFound, Invalid) as error:
                    codes.append(shell.tell_error(error))
                    told.append({name: one, "error": error.code})
                    continue
                told.append({name: one, "state": state})
                if not shell.is_json:
                    click.echo(f"{one}\t{state}")
                    if talk is not None:
                        shell.talk(talk(state))
    finally:
        # Also what was done before the way to the database broke.
        if shell.is_json and told and not is_one:
            emit_json(told)
    if codes:
        return codes[0] if is_one else CONFLICT
    if shell.is_json and is_one:
        emit_json(told[0])
    return OK
