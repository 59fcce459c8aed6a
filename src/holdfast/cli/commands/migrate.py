"""`holdfast migrate`: bring the schema of the chosen database up to date."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from holdfast.cli.ui.command_tree import Command
from holdfast.cli.ui.output import emit_json
from holdfast.cli.ui.shell import Shell, the_shell

if TYPE_CHECKING:
    from holdfast.store.migrate import Migration


@click.command(cls=Command)
def migrate() -> None:
    """Migrate the schema to the current version. Safe to repeat, and safe while workers run."""
    shell = the_shell()
    with shell.busy("Migrating"):
        applied, version, missing = shell.run(_migrate(shell))
    if shell.is_json:
        emit_json({"applied": [migration.name for migration in applied], "version": version, "missing": missing})
        return
    for migration in applied:
        click.echo(f"{migration.number:04}\t{migration.name}")
    shell.talk(f"The schema is at migration {version}" + ("." if applied else ", nothing to do."))
    if missing:
        shell.talk(
            "This database role may not create the role that isolates tenants, so `holdfast server` will "
            "refuse HTTP. Workers and clients that connect to the database are not affected. Run as an "
            "administrator of the database:"
        )
        for statement in missing:
            shell.talk(f"  {statement}")
        shell.talk("Then run `holdfast migrate` again.")


async def _migrate(shell: Shell) -> tuple[list[Migration], int, list[str]]:
    from holdfast.engine.epoch import check_server
    from holdfast.store.database import Database
    from holdfast.store.migrate import migrate, schema_version
    from holdfast.store.resolve import resolve_database
    from holdfast.store.tenant_role import missing_statements

    settings = shell.settings()
    location = await asyncio.to_thread(resolve_database, settings)
    try:
        database = await Database(location.url, sessions_max=1, prepare=settings.prepare).open()
        try:
            applied = await migrate(database)
            async with database.session() as session:
                await check_server(session, 0)
            return applied, await schema_version(database), await missing_statements(database)
        finally:
            await database.close()
    finally:
        location.close()
