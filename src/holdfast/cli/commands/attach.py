"""`holdfast attach`: run in a launched container. It runs the one attempt it was launched for, and ends."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import click

from holdfast.cli.ui.command_tree import Command
from holdfast.cli.ui.process_options import folders, pack_option
from holdfast.cli.ui.shell import FAILED, OK, the_shell
from holdfast.errors import Invalid
from holdfast.settings.log_setup import set_up

if TYPE_CHECKING:
    from holdfast.settings.settings import Settings


@click.command(cls=Command)
@click.argument("app_ref", metavar="[APP]", required=False, default="")
@pack_option
def attach(app_ref: str, packs: tuple[str, ...]) -> None:
    """Run the one attempt this process was launched for, with actions of APP, and end.

    A launcher sets HOLDFAST_LAUNCH_TOKEN, HOLDFAST_TASK_ID and HOLDFAST_ATTEMPT. HOLDFAST_URL names the database, or a
    server, which needs a worker's HOLDFAST_TOKEN. HOLDFAST_APP names the app where no APP is given. Exit code 0 if the
    outcome was accepted, 5 if another attempt has replaced this one.
    """
    shell = the_shell()
    settings = shell.settings()
    set_up(settings.log)
    app_ref = app_ref or os.environ.get("HOLDFAST_APP", "")
    if not app_ref and not packs:
        raise click.UsageError("Missing argument 'APP' (or HOLDFAST_APP), or --pack DIR.")
    raise SystemExit(OK if _attach(app_ref, folders(packs), settings) else FAILED)


def _attach(app_ref: str, packs: list[str], settings: Settings) -> bool:
    from holdfast.authoring.app_settings import settings_for
    from holdfast.authoring.loader import load_app
    from holdfast.core.launching import attempt_of
    from holdfast.core.values import bounds
    from holdfast.net.server_url import is_server
    from holdfast.store.resolve import resolve_database
    from holdfast.worker.runtime.launched_worker import run_attached

    task_id = bounds.task_number(_required_variable("HOLDFAST_TASK_ID"))
    said = os.environ.get("HOLDFAST_ATTEMPT", "")
    attempt = attempt_of(int(said) if said.isascii() and said.isdigit() else said)
    # Removed from the environment, so that processes started by the action cannot read it.
    token = _required_variable("HOLDFAST_LAUNCH_TOKEN")
    del os.environ["HOLDFAST_LAUNCH_TOKEN"]
    app = load_app(app_ref, packs)
    settings = settings_for(app.own_settings, settings)
    app.configure(settings)
    location = None if is_server(settings.url) else resolve_database(settings)
    url = location.url if location is not None else str(settings.url)
    try:
        return asyncio.run(
            run_attached(app, url, app_ref=app_ref, packs=packs, task_id=task_id, attempt=attempt, token=token)
        )
    finally:
        if location is not None:
            location.close()


def _required_variable(variable: str) -> str:
    if not (value := os.environ.get(variable, "")):
        raise Invalid(f"{variable} is not set.", code="not_launched", advice="Only launchers run this command.")
    return value
