"""`holdfast token …`: create, list and revoke API tokens. A secret is shown only once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.ui.command_tree import Group
from holdfast.cli.ui.output import Column, emit_json, emit_rows
from holdfast.cli.ui.shell import the_shell
from holdfast.cli.ui.words import a_or_an, age, hue
from holdfast.core.identity.access import Role
from holdfast.core.values.duration import seconds_of

if TYPE_CHECKING:
    from holdfast.engine.identity.tokens import TokenView


@click.group(cls=Group)
def token() -> None:
    """Create, list and revoke API tokens."""


@token.command()
@click.argument("name")
@click.option("--role", type=click.Choice([role.value for role in Role]), required=True, help="Role of the token.")
@click.option("--queues", metavar="A,B", help="For a worker: only these queues.  [default: every queue]")
@click.option("--expires", metavar="DURATION", help='Lifetime: "90d", "12h" …  [default: unlimited]')
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
def create(name: str, role: str, queues: str | None, expires: str | None, reason: str) -> None:
    """Create a token and print it. It is shown only once: only its digest is stored.

    A viewer reads, an operator also changes work, an admin also manages access, effect rules and webhooks; a worker
    only claims and settles tasks. Send the token as `authorization: Bearer TOKEN`.
    """
    from holdfast.operations.access import CreateToken, create_token

    shell = the_shell()
    request = CreateToken(
        name=name,
        role=role,
        queues=None if queues is None else [queue.strip() for queue in queues.split(",")],
        expires_seconds=None if expires is None else seconds_of(expires),
        reason=reason,
    )
    made = shell.ask(create_token, request)
    if shell.is_json:
        emit_json(made)
        return
    click.echo(made.token)
    until = "" if made.expires_at is None else f", until {made.expires_at:%Y-%m-%d %H:%M} UTC"
    shell.talk(f"{made.token_id} {name} is {a_or_an(made.role)}{until}. The token is shown only once; store it now.")


@token.command("list")
@click.option("--all", "with_ended", is_flag=True, help="Include expired and revoked tokens.")
def list_(with_ended: bool) -> None:
    """List tokens, newest first, without their secrets."""
    from holdfast.operations.access import ListTokens, list_tokens

    shell = the_shell()
    rows = shell.ask_all(list_tokens, ListTokens(with_ended=with_ended), lambda page: page.tokens)
    emit_rows(shell, rows, _columns(), empty="No tokens.")


def _columns() -> list[Column[TokenView]]:
    return [
        Column(title="ID", text=lambda row: row.token_id),
        Column(title="NAME", text=lambda row: row.name, shrinks=True),
        Column(title="ROLE", text=lambda row: row.role),
        Column(title="STATE", text=lambda row: row.state, hue=lambda row: hue(row.state)),
        Column(
            title="USED", text=lambda row: _when(row.last_used_at), plain=lambda row: row.last_used_at, optional=True
        ),
        Column(
            title="EXPIRES",
            text=lambda row: "–" if row.expires_at is None else f"{row.expires_at:%Y-%m-%d %H:%M}",
            plain=lambda row: row.expires_at,
        ),
        Column(
            title="CREATED", text=lambda row: _when(row.created_at), plain=lambda row: row.created_at, optional=True
        ),
        Column(title="BY", text=lambda row: row.created_by, shrinks=True, optional=True),
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
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
def revoke(token_id: str, reason: str) -> None:
    """Revoke a token for good. Takes effect within auth.token_cache_seconds (a few seconds)."""
    from holdfast.operations.access import RevokeToken, revoke_token

    shell = the_shell()
    done = shell.ask(revoke_token, RevokeToken(token_id=token_id, reason=reason))
    if shell.is_json:
        emit_json(done)
        return
    click.echo(f"{done.token_id}\trevoked")
