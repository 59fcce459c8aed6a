"""`holdfast dev`: database, maintenance loops, workers, HTTP API and a live log in one process tree."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.commands.server import launchers_of, run_loops
from holdfast.cli.commands.work import run_worker_group
from holdfast.cli.ui.command_tree import Command
from holdfast.cli.ui.process_options import WorkerGroup, folders, unsafe_option, with_code, worker_group_options
from holdfast.cli.ui.shell import Shell, the_shell
from holdfast.errors import HoldfastError
from holdfast.settings.log_setup import set_up
from holdfast.settings.settings import LogSettings

if TYPE_CHECKING:
    from holdfast.cli.server_thread import ServerThread
    from holdfast.settings.settings import Settings
    from holdfast.store.resolve import DatabaseLocation
    from holdfast.worker.supervisor.maintenance_thread import BackgroundLoop


@click.command(cls=Command)
@worker_group_options
@unsafe_option
def dev(is_unsafe: bool, **options: Any) -> None:
    """Run everything in one process tree: database, maintenance loops, workers for APP, HTTP API, and a live log.

    Without APP there is no worker; start one with `holdfast work`. HOLDFAST_URL or --url select another database.
    """
    from holdfast.engine.failure_log import ATTEMPTS_LOG
    from holdfast.settings.option import LOCAL
    from holdfast.store.resolve import resolve_database

    shell, group = the_shell(), WorkerGroup(**options)
    settings = shell.settings(env=LOCAL, unsafe=is_unsafe or None)
    # The live log shows task events; of all other messages only warnings and errors are printed.
    if settings.log == LogSettings():
        settings = replace(settings, log=LogSettings(level="warning"))
    set_up(settings.log)
    logging.getLogger(ATTEMPTS_LOG).setLevel(logging.ERROR)
    if group:
        settings = with_code(group, settings)
    shell.talk("Starting the database …" if settings.url is None else "Connecting …")
    with shell.busy("Starting"):
        location = resolve_database(settings)
    try:
        raise SystemExit(_develop(shell, location, replace(settings, url=location.url), group))
    finally:
        location.close()


def _develop(shell: Shell, location: DatabaseLocation, settings: Settings, group: WorkerGroup) -> int:
    from holdfast.cli.ui.event_log import LiveLog

    asyncio.run(_prepare(location.url, settings))
    http = _serve_beside(shell, location, settings)
    _greet(shell, location, settings, str(group))
    log = LiveLog(shell, location.url, settings.tenant)
    log.start()
    try:
        if not group:
            return asyncio.run(run_loops(location, settings, shell=shell))
        return run_worker_group(group, settings, loops=True, background_loop=_launching_for(group), logs_failures=False)
    finally:
        if http is not None:
            http.close()
        log.close()
        shell.talk("Stopped.")


def _launching_for(group: WorkerGroup) -> BackgroundLoop:
    """Return the launching loop for one app; launched processes run the same app."""
    from holdfast.launchers.loop import Launching

    packs = folders(group.packs)
    return lambda engine: Launching(engine, launchers_of(engine, group.app_ref, packs)).run()


def _serve_beside(shell: Shell, location: DatabaseLocation, settings: Settings) -> ServerThread | None:
    """Start the HTTP API; if it cannot start, report the reason and continue."""
    from holdfast.cli.server_thread import ServerThread

    server = ServerThread(location.url, settings)
    try:
        shell.talk(f"HTTP      {server.start()}")
    except HoldfastError as error:
        shell.talk(f"HTTP      none: {error.detail} {error.advice}")
        return None
    return server


async def _prepare(url: str, settings: Settings) -> None:
    from holdfast.store.database import Database
    from holdfast.store.durability import require_durable
    from holdfast.store.migrate import migrate

    database = await Database(url, sessions_max=1).open()
    try:
        await require_durable(database, is_unsafe=settings.unsafe)
        await migrate(database)
    finally:
        await database.close()


def _greet(shell: Shell, location: DatabaseLocation, settings: Settings, app_ref: str) -> None:
    from holdfast.store.database import without_password

    shell.talk(f"Database  {without_password(location.url)}{' (embedded)' if location.is_embedded else ''}")
    if location.home is not None:
        shell.talk(f"Data      {location.home}")
    shell.talk(f"Workers   {app_ref}" if app_ref else "Workers   none: pass an APP, or run `holdfast work APP`")
    asks = "HOLDFAST_ENV=local " if location.is_embedded and settings.home is None else ""
    shell.talk(f"Try       {asks}holdfast task list · task submit ACTION key=value · top")
    shell.talk("Ctrl-C stops everything.")
