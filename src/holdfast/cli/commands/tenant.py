"""`holdfast tenant …`: the tenants of this installation, and their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.ui.command_tree import Group
from holdfast.cli.ui.output import Column, emit_json, emit_rows
from holdfast.cli.ui.shell import Shell, actor, the_shell
from holdfast.cli.ui.words import age
from holdfast.errors import Invalid

if TYPE_CHECKING:
    from holdfast.engine.identity.tenants import TenantView

NONE = "none"


@click.group(cls=Group)
def tenant() -> None:
    """Create, list and limit tenants.

    Every object belongs to a tenant. Other commands work for the tenant of HOLDFAST_TENANT (`default`); these work for
    all tenants.
    """


@tenant.command("list")
def list_() -> None:
    """List tenants with their limits, and how many of their tasks are queued and running."""
    shell = the_shell()
    emit_rows(shell, shell.run(_list(shell)), _columns(), empty="No tenants.")


async def _list(shell: Shell) -> list[TenantView]:
    from holdfast.engine.identity.tenants import list_tenants

    async with shell.client() as client:
        return await list_tenants(client.engine.database)


def _columns() -> list[Column[TenantView]]:
    return [
        Column(title="TENANT", text=lambda row: row.name),
        Column(title="ID", text=lambda row: str(row.tenant_id), plain=lambda row: row.tenant_id, right=True),
        Column(title="QUEUED", text=lambda row: str(row.queued), plain=lambda row: row.queued, right=True),
        Column(
            title="MAX QUEUED", text=lambda row: _limit(row.max_queued), plain=lambda row: row.max_queued, right=True
        ),
        Column(title="RUNNING", text=lambda row: str(row.running), plain=lambda row: row.running, right=True),
        Column(
            title="MAX RUNNING", text=lambda row: _limit(row.max_running), plain=lambda row: row.max_running, right=True
        ),
        Column(title="SINCE", text=lambda row: age(row.created_at), plain=lambda row: row.created_at.isoformat()),
    ]


def _limit(limit: int | None) -> str:
    return "-" if limit is None else str(limit)


@tenant.command()
@click.argument("name")
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
def create(name: str, reason: str) -> None:
    """Create a tenant. It cannot be deleted: its number is stored in every row it ever writes."""
    shell = the_shell()
    _emit(shell, shell.run(_create(shell, name, reason)))


async def _create(shell: Shell, name: str, reason: str) -> TenantView:
    from holdfast.engine.identity.tenants import create_tenant

    async with shell.client() as client:
        return await create_tenant(client.engine.database, name, actor=actor(), reason=reason)


@tenant.command()
@click.argument("name")
@click.option("--max-running", metavar="N", help="Maximum number of concurrent attempts; `none` removes the limit.")
@click.option("--max-queued", metavar="N", help="Refuse new tasks when this many are queued; `none` removes the limit.")
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
def limit(name: str, max_running: str | None, max_queued: str | None, reason: str) -> None:
    """Limit how much of a tenant's work runs at once and is queued. Limits that are not named are unchanged."""
    shell = the_shell()
    if max_running is None and max_queued is None:
        raise Invalid("Nothing to change.", code="nothing_to_change", advice="Give --max-running or --max-queued.")
    _emit(shell, shell.run(_change(shell, name, max_running, max_queued, reason)))


async def _change(shell: Shell, name: str, max_running: str | None, max_queued: str | None, reason: str) -> TenantView:
    from msgspec import UNSET

    from holdfast.engine.identity.tenants import limit_tenant

    async with shell.client() as client:
        return await limit_tenant(
            client.engine.database,
            name,
            max_running=UNSET if max_running is None else _number(max_running, "--max-running"),
            max_queued=UNSET if max_queued is None else _number(max_queued, "--max-queued"),
            actor=actor(),
            reason=reason,
        )


def _number(text: str, option: str) -> int | None:
    if text == NONE:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Invalid(f"{option} takes a number or `none`, not {text!r}.", code="invalid_limit")
    return int(text)


def _emit(shell: Shell, view: TenantView) -> None:
    if shell.is_json:
        emit_json(view)
        return
    click.echo(f"{view.name}\t{view.tenant_id}\t{_limit(view.max_running)}\t{_limit(view.max_queued)}")
