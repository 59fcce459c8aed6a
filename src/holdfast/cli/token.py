"""`holdfast token …`: keys for programs, made and ended. Nobody can read one a second time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.shell import Shell, actor, the_shell
from holdfast.cli.show import Column, emit_json, emit_rows
from holdfast.cli.tree import Group
from holdfast.cli.words import age, hue
from holdfast.core.access import Role
from holdfast.core.duration import seconds_of

if TYPE_CHECKING:
    from holdfast.dispatcher.tokens import CreatedToken, TokenView


@click.group(cls=Group)
def token() -> None:
    """Make, list and revoke API tokens."""


@token.command()
@click.argument("name")
@click.option("--role", type=click.Choice([role.value for role in Role]), required=True, help="What its holder may do.")
@click.option("--queues", metavar="A,B", help="For a worker: only these queues.  [default: every queue]")
@click.option("--expires", metavar="DURATION", help='How long it lives: "90d", "12h" …  [default: for ever]')
@click.option("--reason", metavar="TEXT", default="", help="Why, for whoever wonders.")
def create(name: str, role: str, queues: str | None, expires: str | None, reason: str) -> None:
    """Make a token and print it, this once: only a digest of it is kept.

    viewer sees, operator also steers, admin also governs; worker claims and settles tasks and can do nothing else. Send
    it as `authorization: Bearer TOKEN`.
    """
    shell = the_shell()
    options: dict[str, Any] = {
        "name": name,
        "role": role,
        "queues": None if queues is None else [queue.strip() for queue in queues.split(",")],
        "expires_seconds": None if expires is None else seconds_of(expires),
        "actor": actor(),
        "reason": reason,
    }
    made = shell.run(_create(shell, options))
    if shell.is_json:
        emit_json(made)
        return
    click.echo(made.token)
    until = "" if made.expires_at is None else f", until {made.expires_at:%Y-%m-%d %H:%M} UTC"
    shell.talk(f"{made.token_id} {name} is a {made.role}{until}. This is shown once; keep it now.")


async def _create(shell: Shell, options: dict[str, Any]) -> CreatedToken:
    from holdfast.dispatcher.tokens import create_token

    async with shell.client() as client:
        return await create_token(client.engine.database, client.engine.tenant_id, **options)


@token.command("list")
@click.option("--all", "with_ended", is_flag=True, help="Also those that expired or were revoked.")
def list_(with_ended: bool) -> None:
    """List tokens, newest first, without their secrets."""
    shell = the_shell()
    emit_rows(shell, shell.run(_list(shell, with_ended)), _columns(), empty="No tokens.")


async def _list(shell: Shell, with_ended: bool) -> list[TokenView]:
    from holdfast.dispatcher.tokens import list_tokens

    async with shell.client() as client:
        return await list_tokens(client.engine.database, client.engine.tenant_id, with_ended=with_ended)


def _columns() -> list[Column[TokenView]]:
    return [
        Column(title="ID", text=lambda row: row.token_id),
        Column(title="NAME", text=lambda row: row.name),
        Column(title="ROLE", text=lambda row: row.role),
        Column(title="STATE", text=lambda row: row.state, hue=lambda row: hue(row.state)),
        Column(title="USED", text=lambda row: _when(row.last_used_at), plain=lambda row: row.last_used_at),
        Column(
            title="EXPIRES",
            text=lambda row: "–" if row.expires_at is None else f"{row.expires_at:%Y-%m-%d %H:%M}",
            plain=lambda row: row.expires_at,
        ),
        Column(title="CREATED", text=lambda row: _when(row.created_at), plain=lambda row: row.created_at),
        Column(title="BY", text=lambda row: row.created_by),
        Column(
            title="QUEUES",
            text=lambda row: "every queue" if row.queues is None else ", ".join(row.queues),
            plain=lambda row: None if row.queues is None else ",".join(row.queues),
            stretch=True,
        ),
    ]


def _when(instant: Any) -> str:
    return "never" if instant is None else age(instant)


@token.command()
@click.argument("token_id", metavar="ID|NAME")
@click.option("--reason", metavar="TEXT", default="", help="Why, for whoever wonders.")
def revoke(token_id: str, reason: str) -> None:
    """End a token for good. Servers notice within a few seconds (the setting auth.token_cache_seconds)."""
    shell = the_shell()
    ended = shell.run(_revoke(shell, token_id, reason))
    if shell.is_json:
        emit_json({"token_id": ended, "state": "revoked"})
        return
    click.echo(f"{ended}\trevoked")


async def _revoke(shell: Shell, which: str, reason: str) -> str:
    from holdfast.dispatcher.tokens import revoke_token

    async with shell.client() as client:
        engine = client.engine
        return await revoke_token(engine.database, engine.tenant_id, which, actor=actor(), reason=reason)
