"""`holdfast work`: worker processes for the actions of an app and of packs. Ctrl-C shuts them down cleanly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.ui.command_tree import Command
from holdfast.cli.ui.process_options import WorkerGroup, folders, unsafe_option, with_code, worker_group_options
from holdfast.cli.ui.shell import USAGE, the_shell
from holdfast.settings.log_setup import set_up

if TYPE_CHECKING:
    from holdfast.settings.settings import Settings
    from holdfast.worker.supervisor.maintenance_thread import BackgroundLoop


@click.command(cls=Command)
@worker_group_options
@click.option("--loops/--no-loops", default=True, show_default=True, help="Also run the maintenance loops.")
@unsafe_option
def work(loops: bool, is_unsafe: bool, **options: Any) -> None:
    """Start a worker for the actions of APP, which is `module:app` or `file.py:app`, and of packs.

    With the URL of a server (`--url https://server.example`, HOLDFAST_TOKEN) it needs no database access.

    Worker processes run under a supervisor that restarts them. The first Ctrl-C or SIGTERM lets running attempts
    finish, a second one hands them back at once.
    """
    shell, group = the_shell(), WorkerGroup(**options)
    settings = shell.settings(unsafe=is_unsafe or None)
    set_up(settings.log)
    if not group:
        raise click.UsageError("Missing argument 'APP', or --pack DIR.")
    if group.app_ref and settings.url is None and settings.home is None:
        # No database is configured, so the app's code may name one. Otherwise only the worker processes load the app.
        settings = with_code(group, settings)
    raise SystemExit(run_worker_group(group, settings, loops=loops))


def run_worker_group(
    group: WorkerGroup,
    settings: Settings,
    *,
    loops: bool,
    background_loop: BackgroundLoop | None = None,
    logs_failures: bool = True,
) -> int:
    """Run worker processes until a signal arrives, and return the exit code."""
    from holdfast.core.values import bounds
    from holdfast.wakeups.carriers import require_carrier
    from holdfast.worker.supervisor.start_orders import ExitCode
    from holdfast.worker.supervisor.supervisor import run_workers

    named = None if group.queues is None else [bounds.valid_queue(name.strip()) for name in group.queues.split(",")]
    require_carrier(settings.wake, named)
    code = run_workers(
        group.app_ref,
        settings,
        processes=group.processes or settings.worker.processes,
        slots=group.slots or settings.worker.slots,
        queues=named,
        loops=loops,
        packs=folders(group.packs),
        background_loop=background_loop,
        logs_failures=logs_failures,
    )
    # The app cannot be loaded or the worker was refused; its message is on stderr already.
    return USAGE if code == ExitCode.CANNOT_LOAD else code
