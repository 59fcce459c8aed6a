"""`holdfast server`: the HTTP API and the maintenance loops in one process. Ctrl-C shuts it down cleanly."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

import click

from holdfast._internal.gc_tuning import tune_gc
from holdfast.cli.ui.command_tree import Command
from holdfast.cli.ui.process_options import unsafe_option
from holdfast.cli.ui.shell import FAILED, OK, Shell, the_shell
from holdfast.errors import Unavailable
from holdfast.settings.log_setup import set_up

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine
    from holdfast.launchers.profiles import Profiles
    from holdfast.settings.settings import Settings
    from holdfast.store.resolve import DatabaseLocation

LOOP_SESSIONS_MAX = 4
HTTP_SESSIONS_MAX = 20


@click.command(cls=Command)
@click.option("--http/--no-http", "with_http", default=True, show_default=True, help="Serve the HTTP API.")
@click.option("--host", metavar="ADDRESS", help="Address to listen on.  [default: the setting, 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on.  [default: the setting, 8787]")
@unsafe_option
def server(with_http: bool, host: str | None, port: int | None, is_unsafe: bool) -> None:
    """Serve the HTTP API and run the maintenance loops: expired leases, due retries, retention.

    Several servers may run.

    It also launches workers for actions that have a launcher. The API needs the extra `holdfast[server]`; without it,
    --no-http runs the loops alone.
    """
    shell = the_shell()
    settings = shell.settings(host=host, port=port, unsafe=is_unsafe or None)
    set_up(settings.log)
    if with_http:
        require_http(settings)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        raise SystemExit(runner.run(_serve(shell, settings, with_http)))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of the faster event loop, if it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def require_http(settings: Settings) -> None:
    """Raise an error about missing or unsafe parts before anything starts."""
    try:
        from holdfast.server.app import serving  # noqa: F401 - is it there?
        from holdfast.server.auth.client_address import require_safe_address
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"The HTTP API needs {error.name}, which is not installed.",
            code="extra_missing",
            advice="pip install 'holdfast[server]', or run `holdfast server --no-http`.",
        ) from error
    require_safe_address(settings)


async def _serve(shell: Shell, settings: Settings, with_http: bool) -> int:
    from holdfast.store.resolve import resolve_database

    location = await asyncio.to_thread(resolve_database, settings)
    try:
        return await run_loops(location, settings, shell=shell, with_http=with_http)
    finally:
        location.close()


async def run_loops(location: DatabaseLocation, settings: Settings, *, shell: Shell, with_http: bool = False) -> int:
    """Run the loops, and optionally the API, until a signal arrives or the loops fail permanently."""
    from holdfast.engine.engine import Engine
    from holdfast.store.database import without_password
    from holdfast.store.durability import require_durable
    from holdfast.store.tenant_role import require_tenant_role
    from holdfast.wakeups.carriers import require_carrier

    require_carrier(settings.wake, [])
    stop = asyncio.Event()
    for which in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(which, stop.set)
    new_engine = partial(Engine, location.url, settings)
    async with AsyncExitStack() as stack:
        engine = await _open_engine(
            stack, partial(new_engine, sessions_max=LOOP_SESSIONS_MAX, migrates=location.is_embedded), stop
        )
        if engine is None:
            return OK
        await require_durable(engine.database, is_unsafe=settings.unsafe)
        launchers_of(engine).check()
        shell.talk(f"Maintenance loops on {without_password(location.url)}. Ctrl-C stops them.")
        if with_http:
            await require_tenant_role(engine.database)
            # A separate pool: requests that use up its sessions leave the maintenance loops theirs.
            api = await _open_engine(stack, partial(new_engine, sessions_max=HTTP_SESSIONS_MAX), stop)
            if api is None:
                return OK
            await _offer(stack, api, shell)
        return await _loop_until(stop, engine)


async def _open_engine(stack: AsyncExitStack, new_engine: Callable[[], Engine], stop: asyncio.Event) -> Engine | None:
    """Open an engine, waiting for a database that is away or full; return None if a signal ends the wait."""
    from holdfast.worker.runtime.startup_retry import START_SECONDS_MAX, retry_until_available

    opening = asyncio.create_task(
        retry_until_available(lambda: stack.enter_async_context(new_engine()), seconds_max=START_SECONDS_MAX),
        name="holdfast-open",
    )
    stop_requested = asyncio.create_task(stop.wait(), name="holdfast-stop")
    await asyncio.wait({opening, stop_requested}, return_when=asyncio.FIRST_COMPLETED)
    stop_requested.cancel()
    if opening.done():
        return opening.result()
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    return None


async def _offer(stack: AsyncExitStack, engine: Engine, shell: Shell) -> None:
    """Serve the API while the stack is open."""
    from holdfast.server.app import listening

    addresses = await stack.enter_async_context(listening(engine))
    shell.talk(f"HTTP API on {addresses.url}")
    if addresses.internal_url != addresses.url:
        shell.talk(f"Workers on {addresses.internal_url}")


async def _loop_until(stop: asyncio.Event, engine: Engine) -> int:
    tune_gc()
    loops = asyncio.create_task(_all_loops(engine), name="holdfast-loops")
    stop_requested = asyncio.create_task(stop.wait(), name="holdfast-stop")
    await asyncio.wait({loops, stop_requested}, return_when=asyncio.FIRST_COMPLETED)
    is_broken = loops.done()
    for task in (loops, stop_requested):
        task.cancel()
    ended = await asyncio.gather(loops, return_exceptions=True)
    if is_broken:
        logging.getLogger("holdfast").error("the maintenance loops ended: %r", ended[0])
    return FAILED if is_broken else OK


async def _all_loops(engine: Engine) -> None:
    """Run the maintenance loops and the launching loop."""
    from holdfast.engine.maintenance.loops import Loops
    from holdfast.launchers.loop import Launching

    async with asyncio.TaskGroup() as group:
        group.create_task(Loops(engine).run())
        group.create_task(Launching(engine, launchers_of(engine)).run())


def launchers_of(engine: Engine, app_ref: str = "", packs: Sequence[str] = ()) -> Profiles:
    """Return the launchers that the settings name; launched workers run this app."""
    from holdfast.launchers.profiles import Profiles

    return Profiles(engine.settings, url=engine.database.url, app_ref=app_ref, packs=packs)
