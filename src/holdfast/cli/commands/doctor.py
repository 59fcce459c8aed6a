"""`holdfast doctor`: check this machine, the database and the flow of work, with a fix for each finding."""

from __future__ import annotations

import asyncio
import platform
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from holdfast.cli.ui.command_tree import Command
from holdfast.cli.ui.output import emit_json
from holdfast.cli.ui.shell import FAILED, OK, Shell, the_shell
from holdfast.cli.ui.words import one_line
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.engine.queries.checkup import Finding
    from holdfast.settings.settings import Settings

_MARKS = {"ok": ("✓", "cyan"), "warning": ("◔", "yellow"), "failed": ("✕", "red")}


@click.command(cls=Command)
def doctor() -> None:
    """Check this machine and the database, with a fix for each finding.

    Exits 1 if something is broken; warnings do not count.
    """
    shell = the_shell()
    with shell.busy("Looking"):
        findings = shell.run(_examine(shell))
    is_broken = any(finding.level == "failed" for finding in findings)
    if shell.is_json:
        emit_json(findings)
    else:
        _print(shell, findings)
    raise SystemExit(FAILED if is_broken else OK)


async def _examine(shell: Shell) -> list[Finding]:
    from holdfast.core.health.liveness import silent_seconds
    from holdfast.engine.queries.checkup import Finding, Level, check_up, finding
    from holdfast.net.server_url import is_server
    from holdfast.store.database import Database, without_password
    from holdfast.store.resolve import resolve_database

    is_new = sys.version_info >= (3, 11)
    found = [finding("python", is_new, platform.python_version(), "Use Python 3.11 or newer.", otherwise=Level.FAILED)]
    try:
        settings = shell.settings()
        found.append(Finding(name="settings", level=Level.OK, detail=f"environment {settings.env}"))
        if is_server(settings.url):
            return [*found, *await _examine_server(shell, settings)]
        location = await asyncio.to_thread(resolve_database, settings)
    except HoldfastError as error:
        return [*found, Finding(name="database", level=Level.FAILED, detail=error.detail, fix=error.advice)]
    try:
        database = await Database(
            location.url, sessions_max=1, direct_url=settings.direct_url, prepare=settings.prepare
        ).open()
    except HoldfastError as error:
        location.close()
        # Elsewhere the advice is to run this very command.
        fix = error.advice.replace(" (`holdfast doctor`)", "")
        return [*found, Finding(name="database", level=Level.FAILED, detail=error.detail, fix=fix)]
    try:
        kind = " (embedded)" if location.is_embedded else ""
        found.append(Finding(name="database", level=Level.OK, detail=f"{without_password(location.url)}{kind}"))
        found += await check_up(
            database,
            now=datetime.now(UTC),
            carrier=settings.wake.over,
            silent_seconds=silent_seconds(settings.worker.lease_seconds),
        )
        return [*found, *await _carrier(settings)]
    finally:
        await database.close()
        location.close()


async def _examine_server(shell: Shell, settings: Settings) -> list[Finding]:
    """Return the findings of a server about itself and its database."""
    from holdfast.engine.queries.checkup import Finding, Level
    from holdfast.operations.administration import examine
    from holdfast.operations.shared_types import Empty
    from holdfast.store.database import without_password

    async with shell.operation_client() as operation_client:
        theirs = (await operation_client.ask(examine, Empty())).findings
    here = Finding(name="server", level=Level.OK, detail=without_password(settings.url or ""))
    return [here, *theirs]


async def _carrier(settings: Settings) -> list[Finding]:
    """Check the carrier of hints from this machine."""
    from holdfast.engine.queries.checkup import Finding, Level
    from holdfast.wakeups.carriers import address_for, has_one_address, is_external, open_transport

    wake = settings.wake
    if not is_external(wake) or not has_one_address(wake):
        return []
    try:
        transport = open_transport(wake, address_for(wake, ""))
        try:
            return [Finding(name="carrier", level=Level.OK, detail=await transport.check())]
        finally:
            await transport.close()
    except HoldfastError as error:
        # Tasks are processed without it, so it is only a warning.
        return [Finding(name="carrier", level=Level.WARNING, detail=error.detail, fix=error.advice)]


def _print(shell: Shell, findings: list[Finding]) -> None:
    if not shell.is_table:
        for finding in findings:
            click.echo("\t".join((finding.level, finding.name, one_line(finding.detail), one_line(finding.fix))))
        return
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark, colour = _MARKS[finding.level]
        line = f"{click.style(mark, fg=colour)} {finding.name:<{width}}  {one_line(finding.detail)}"
        click.echo(line, color=shell.has_colour())
        if finding.fix:
            click.echo(f"  {'':<{width}}  → {one_line(finding.fix)}")
