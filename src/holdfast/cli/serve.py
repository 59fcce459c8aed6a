"""`holdfast dev`, `server` and `work`: the processes that do the work. Ctrl-C stops each in good order."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.shell import FAILED, OK, USAGE, Shell, the_shell
from holdfast.cli.tree import Command
from holdfast.errors import HoldfastError, Unavailable

if TYPE_CHECKING:
    from holdfast.cli.beside import ServerBeside
    from holdfast.dispatcher.engine import Engine
    from holdfast.launch.profiles import Profiles
    from holdfast.place import Place
    from holdfast.settings import Settings
    from holdfast.worker.repairs import Beside

F = TypeVar("F", bound=Callable[..., Any])

LOOP_SESSIONS_MAX = 4
HTTP_SESSIONS_MAX = 20
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


def pack_option(command: F) -> F:
    return click.option(
        "--pack",
        "packs",
        multiple=True,
        metavar="DIR",
        help="Also run the YAML actions of this pack, or of all packs in DIR; may be repeated.",
    )(command)


def unsafe_option(command: F) -> F:
    return click.option(
        "--unsafe",
        "is_unsafe",
        is_flag=True,
        help="Start although the server can lose accepted work in a crash (fsync off).",
    )(command)


@click.command(cls=Command)
@click.argument("app_ref", metavar="[APP]", required=False, default="")
@pack_option
@click.option("--processes", type=click.IntRange(1, 1024), help="Worker processes.  [default: the setting, 1]")
@click.option(
    "--slots", type=click.IntRange(1, 100_000), help="Attempts each runs at once.  [default: the setting, 100]"
)
@click.option("--queues", metavar="A,B", help="Only these queues.  [default: every queue]")
@click.option("--loops/--no-loops", default=True, show_default=True, help="Also run the repair loops.")
@unsafe_option
def work(
    app_ref: str,
    packs: tuple[str, ...],
    processes: int | None,
    slots: int | None,
    queues: str | None,
    loops: bool,
    is_unsafe: bool,
) -> None:
    """Start a worker for the actions of APP, which is `module:app` or `file.py:app`, and of packs.

    With the URL of a server (`--url https://server.example`, HOLDFAST_TOKEN) it needs no database of its own.

    Worker processes run under a parent that restarts them. The first Ctrl-C or SIGTERM lets running attempts finish, a
    second one hands them back at once.
    """
    shell = the_shell()
    settings = shell.settings(unsafe=is_unsafe or None)
    log_to_stderr()
    if not app_ref and not packs:
        raise click.UsageError("Missing argument 'APP', or --pack DIR.")
    if app_ref and settings.url is None and settings.home is None:
        # Told no database, so the app's code may name one. Otherwise only the worker processes load it.
        settings = _with_code(app_ref, packs, settings)
    raise SystemExit(_work(app_ref, packs, settings, processes, slots, queues, loops))


def _work(
    app_ref: str,
    packs: Sequence[str],
    settings: Settings,
    processes: int | None,
    slots: int | None,
    queues: str | None,
    loops: bool,
    beside: Beside | None = None,
) -> int:
    from holdfast.core import limits
    from holdfast.wake.carriers import require_carrier
    from holdfast.worker.orders import Ending
    from holdfast.worker.parent import run_workers

    named = None if queues is None else [limits.valid_queue(name.strip()) for name in queues.split(",")]
    require_carrier(settings.wake, named)
    code = run_workers(
        app_ref,
        settings,
        processes=processes or settings.worker.processes,
        slots=slots or settings.worker.slots,
        queues=named,
        loops=loops,
        packs=folders(packs),
        beside=beside,
    )
    # An app that cannot be loaded is a wrong argument; its own message is on stderr already.
    return USAGE if code == Ending.CANNOT_LOAD else code


@click.command(cls=Command)
@click.option("--http/--no-http", "with_http", default=True, show_default=True, help="Offer the HTTP API.")
@click.option("--host", metavar="ADDRESS", help="Address to listen on.  [default: the setting, 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on.  [default: the setting, 8787]")
@unsafe_option
def server(with_http: bool, host: str | None, port: int | None, is_unsafe: bool) -> None:
    """Offer the HTTP API and run the repair loops: expired leases, due retries, retention. Any number may run.

    It also launches workers for actions that have a launcher. The API needs the extra `holdfast[server]`; without it,
    --no-http runs the loops alone.
    """
    shell = the_shell()
    settings = shell.settings(host=host, port=port, unsafe=is_unsafe or None)
    log_to_stderr()
    if with_http:
        require_http(settings)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        raise SystemExit(runner.run(_serve(shell, settings, with_http)))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The faster loop where there is one."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def require_http(settings: Settings) -> None:
    """Say what is missing, or unsafe, before anything starts."""
    try:
        from holdfast.api.door.address import require_safe_address
        from holdfast.api.server import serving  # noqa: F401 - is it there?
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"The HTTP API needs {error.name}, which is not installed.",
            code="extra_missing",
            advice="pip install 'holdfast[server]', or run `holdfast server --no-http`.",
        ) from error
    require_safe_address(settings)


async def _serve(shell: Shell, settings: Settings, with_http: bool) -> int:
    from holdfast.place import find_place

    place = await asyncio.to_thread(find_place, settings)
    try:
        return await run_loops(place, settings, shell=shell, with_http=with_http)
    finally:
        place.close()


async def run_loops(place: Place, settings: Settings, *, shell: Shell, with_http: bool = False) -> int:
    """Run the loops, and the API if wanted, until a signal, or until they fail in a way that nothing mends."""
    from holdfast.dispatcher.engine import Engine
    from holdfast.store.database import without_password
    from holdfast.store.durability import require_durable
    from holdfast.wake.carriers import require_carrier

    require_carrier(settings.wake, [])
    stop = asyncio.Event()
    for which in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(which, stop.set)
    sessions_max = HTTP_SESSIONS_MAX if with_http else LOOP_SESSIONS_MAX
    async with Engine(place.url, settings, sessions_max=sessions_max, migrates=place.is_embedded) as engine:
        await require_durable(engine.database, is_unsafe=settings.unsafe)
        _launchers(engine).check()
        shell.talk(f"Repair loops on {without_password(place.url)}. Ctrl-C stops them.")
        if not with_http:
            return await _loop_until(stop, engine)
        from holdfast.api.server import listening

        async with listening(engine) as addresses:
            shell.talk(f"HTTP API on {addresses.url}")
            if addresses.internal_url != addresses.url:
                shell.talk(f"Workers on {addresses.internal_url}")
            return await _loop_until(stop, engine)


async def _loop_until(stop: asyncio.Event, engine: Engine) -> int:
    loops = asyncio.create_task(_all_loops(engine), name="holdfast-loops")
    asked = asyncio.create_task(stop.wait(), name="holdfast-stop")
    await asyncio.wait({loops, asked}, return_when=asyncio.FIRST_COMPLETED)
    is_broken = loops.done()
    for task in (loops, asked):
        task.cancel()
    ended = await asyncio.gather(loops, return_exceptions=True)
    if is_broken:
        logging.getLogger("holdfast").error("the repair loops ended: %r", ended[0])
    return FAILED if is_broken else OK


async def _all_loops(engine: Engine) -> None:
    """Repair what is left undone, and launch workers for what asks for it."""
    from holdfast.dispatcher.loops import Loops
    from holdfast.launch.loop import Launching

    async with asyncio.TaskGroup() as group:
        group.create_task(Loops(engine).run())
        group.create_task(Launching(engine, _launchers(engine)).run())


def _launching_for(app_ref: str, packs: Sequence[str]) -> Beside:
    """The launching loop for one app: launched processes run the same."""
    from holdfast.launch.loop import Launching

    return lambda engine: Launching(engine, _launchers(engine, app_ref, packs)).run()


def _launchers(engine: Engine, app_ref: str = "", packs: Sequence[str] = ()) -> Profiles:
    from holdfast.launch.profiles import Profiles

    return Profiles(engine.settings, url=engine.database.url, app_ref=app_ref, packs=packs)


@click.command(cls=Command)
@click.argument("app_ref", metavar="[APP]", required=False)
@pack_option
@click.option("--processes", type=click.IntRange(1, 1024), help="Worker processes.  [default: the setting, 1]")
@click.option(
    "--slots", type=click.IntRange(1, 100_000), help="Attempts each runs at once.  [default: the setting, 100]"
)
@click.option("--queues", metavar="A,B", help="Only these queues.  [default: every queue]")
@unsafe_option
def dev(
    app_ref: str | None,
    packs: tuple[str, ...],
    processes: int | None,
    slots: int | None,
    queues: str | None,
    is_unsafe: bool,
) -> None:
    """Everything in one process tree: the database, the repair loops, workers for APP, the HTTP API, and a live log.

    Without APP there is no worker; start one with `holdfast work`. HOLDFAST_URL or --url use another database instead.
    """
    from holdfast.place import find_place
    from holdfast.settings_option import LOCAL

    shell = the_shell()
    settings = shell.settings(env=LOCAL, unsafe=is_unsafe or None)
    log_to_stderr(level=logging.WARNING)
    if app_ref is not None or packs:
        settings = _with_code(app_ref or "", packs, settings)
    shell.talk("Starting the database …" if settings.url is None else "Connecting …")
    with shell.busy("Starting"):
        place = find_place(settings)
    try:
        settings = replace(settings, url=place.url)
        raise SystemExit(_develop(shell, place, settings, app_ref, packs, processes, slots, queues))
    finally:
        place.close()


def _develop(
    shell: Shell,
    place: Place,
    settings: Settings,
    app_ref: str | None,
    packs: Sequence[str],
    processes: int | None,
    slots: int | None,
    queues: str | None,
) -> int:
    from holdfast.cli.livelog import LiveLog

    asyncio.run(_prepare(place.url, settings))
    http = _serve_beside(shell, place, settings)
    _greet(shell, place, settings, " and ".join(filter(None, [app_ref, *packs])))
    log = LiveLog(shell, place.url, settings.tenant)
    log.start()
    try:
        if app_ref is None and not packs:
            return asyncio.run(run_loops(place, settings, shell=shell))
        beside = _launching_for(app_ref or "", folders(packs))
        return _work(app_ref or "", packs, settings, processes, slots, queues, loops=True, beside=beside)
    finally:
        if http is not None:
            http.close()
        log.close()
        shell.talk("Stopped.")


def _serve_beside(shell: Shell, place: Place, settings: Settings) -> ServerBeside | None:
    """Offer the HTTP API too; what keeps it from starting is said, and the rest goes on."""
    from holdfast.cli.beside import ServerBeside

    server = ServerBeside(place.url, settings)
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


def folders(packs: Sequence[str]) -> list[str]:
    """Each pack by its own folder; one that is none is left for its loader to complain about."""
    if not packs:
        return []
    from holdfast.packs.load import find_packs

    return [str(folder) for given in packs for folder in find_packs(Path(given)) or [Path(given)]]


def _with_code(app_ref: str, packs: Sequence[str], settings: Settings) -> Settings:
    """The settings, with what the app's code says of them. A typing mistake shows here, before a database starts."""
    from holdfast.app_settings import settings_for
    from holdfast.load import load_app

    return settings_for(load_app(app_ref, folders(packs)).own_settings, settings)


def _greet(shell: Shell, place: Place, settings: Settings, app_ref: str) -> None:
    from holdfast.store.database import without_password

    shell.talk(f"Database  {without_password(place.url)}{' (embedded)' if place.is_embedded else ''}")
    shell.talk(f"Workers   {app_ref}" if app_ref else "Workers   none: give an APP, or run `holdfast work APP`")
    asks = "HOLDFAST_ENV=local " if place.is_embedded and settings.home is None else ""
    shell.talk(f"Try       {asks}holdfast task list · task submit ACTION --input '{{}}' · top")
    shell.talk("Ctrl-C stops everything.")


def log_to_stderr(level: int = logging.INFO) -> None:
    logging.basicConfig(level=level, format=LOG_FORMAT, stream=sys.stderr)
