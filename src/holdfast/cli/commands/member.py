"""`holdfast member …`: accounts and domains that may sign in with an ID token, and their roles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.ui.command_tree import Group
from holdfast.cli.ui.output import Column, emit_json, emit_rows
from holdfast.cli.ui.shell import the_shell
from holdfast.cli.ui.words import age
from holdfast.core.identity.access import Role

if TYPE_CHECKING:
    from holdfast.engine.identity.members import Member


@click.group(cls=Group)
def member() -> None:
    """Manage who may sign in, and with which role."""


@member.command()
@click.option("--issuer", metavar="URL|google", required=True, help="Issuer: the `iss` claim of their ID tokens.")
@click.option("--subject", metavar="TEXT", help="One account: the `sub` claim of its ID tokens.")
@click.option(
    "--hd", "domain", metavar="DOMAIN", help="Every account of a hosted domain: the `hd` claim of their ID tokens."
)
@click.option("--role", type=click.Choice([role.value for role in Role]), required=True, help="Role of the member.")
@click.option("--name", metavar="TEXT", default="", help="Note for the list of members, such as a name.")
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
def add(**options: Any) -> None:
    """Allow an account, or every account of a domain, to sign in.

    An account is identified by its subject and never by its e-mail address, which may be reassigned. Its own role
    overrides that of its domain, in the tenant of that domain; in other tenants it has no effect.
    """
    from holdfast.operations.access import AddMember, add_member

    shell = the_shell()
    added = shell.ask(add_member, AddMember(**options))
    if shell.is_json:
        emit_json(added)
        return
    click.echo(f"{added.member_id}\t{added.subject or added.domain}\t{added.role}")


@member.command("list")
def list_() -> None:
    """List the accounts and domains that may sign in."""
    from holdfast.operations.access import list_members
    from holdfast.operations.shared_types import ListNames

    shell = the_shell()
    columns: list[Column[Member]] = [
        Column(title="ID", text=lambda row: row.member_id, right=True),
        Column(title="ISSUER", text=lambda row: row.issuer, shrinks=True),
        Column(title="SUBJECT", text=lambda row: row.subject or "–", plain=lambda row: row.subject, shrinks=True),
        Column(
            title="DOMAIN",
            text=lambda row: row.domain or "–",
            plain=lambda row: row.domain,
            shrinks=True,
            optional=True,
        ),
        Column(title="ROLE", text=lambda row: row.role),
        Column(
            title="ADDED", text=lambda row: age(row.added_at), plain=lambda row: row.added_at.isoformat(), optional=True
        ),
        Column(title="BY", text=lambda row: row.added_by, shrinks=True, optional=True),
        Column(title="NAME", text=lambda row: row.name, stretch=True),
    ]
    rows = shell.ask_all(list_members, ListNames(), lambda page: page.members)
    emit_rows(shell, rows, columns, empty="No members: sign-in with an ID token is not possible.")


@member.command()
@click.argument("member_id", metavar="ID")
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
def remove(member_id: str, reason: str) -> None:
    """Remove the permission of an account or a domain to sign in. Takes effect within auth.token_cache_seconds."""
    from holdfast.operations.access import RemoveMember, remove_member

    shell = the_shell()
    done = shell.ask(remove_member, RemoveMember(member_id=member_id, reason=reason))
    if shell.is_json:
        emit_json(done)
        return
    click.echo(f"{member_id}\tremoved")
