"""A worker process: `python -m holdfast.worker.supervisor.child PARENT_PIPE DEADLINE_PAGE`, started by the supervisor.

On SIGTERM, running attempts may finish within the shutdown time; on SIGINT, everything is handed back at once. When the
supervisor dies, nothing enforces this process's leases, so it claims no more work, gives running attempts one lease
time to finish, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import NoReturn

from holdfast._internal.gc_tuning import tune_gc
from holdfast.authoring.app import App
from holdfast.authoring.app_settings import settings_for
from holdfast.authoring.loader import load_app
from holdfast.engine.engine import Engine
from holdfast.engine.failure_log import ATTEMPTS_LOG
from holdfast.errors import HoldfastError, Invalid, Unavailable
from holdfast.net.server_url import is_server
from holdfast.settings.log_setup import set_up
from holdfast.settings.settings import Settings
from holdfast.store.errors import without_password
from holdfast.worker.isolation.pool import Isolated
from holdfast.worker.runtime.startup_retry import START_SECONDS_MAX, retry_until_available
from holdfast.worker.runtime.worker import Worker
from holdfast.worker.supervisor import start_orders as wire_orders
from holdfast.worker.supervisor.deadline_page import DeadlinePage
from holdfast.worker.supervisor.kill_timer import KillTimer
from holdfast.worker.supervisor.start_orders import ExitCode, Orders
from holdfast.worker.transport.contract import Transport

log = logging.getLogger("holdfast.worker")

ACTIONS_SHOWN_MAX = 20
ORDERS_BYTES_MAX = 1024 * 1024
KILL_TIMER_DELAY = 0.03
"""Delay of the kernel timer after the supervisor's deadline, as a share of the lease. Including the supervisor's own
delay it still fires before the lease expires.
"""

SIGN_OFF_SECONDS = 5.0
"""How long a process without a supervisor may take to sign off after its attempts had their time."""


def main(arguments: list[str]) -> int:
    parent_pipe, deadline_page = ParentPipe(int(arguments[0])), DeadlinePage(int(arguments[1]))
    os.set_inheritable(deadline_page.descriptor, False)
    orders_line = parent_pipe.read_line()
    if not orders_line:
        return ExitCode.STOPPED
    orders = wire_orders.decode(orders_line)
    parent_watch = ParentWatch(orders.settings.worker.lease_seconds)
    parent_pipe.watch(parent_watch.on_end)
    try:
        app = load_app(orders.app_ref, orders.packs)
        # An app that configured logging itself keeps its configuration.
        set_up(orders.settings.log)
        if not orders.logs_failures:
            logging.getLogger(ATTEMPTS_LOG).setLevel(logging.ERROR)
        app.configure(settings_for(app.own_settings, replace(orders.settings, url=orders.url)))
    except Invalid as error:
        print(f"holdfast: {error}", file=sys.stderr, flush=True)
        return ExitCode.CANNOT_LOAD
    tune_gc()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        exit_code, is_idle = runner.run(_work(app, orders, deadline_page, parent_watch))
        if not is_idle:
            # A thread still runs an attempt. A normal exit would wait for it past its lease.
            sys.stdout.flush()
            leave(exit_code)
    return exit_code


class ParentPipe:
    """A pipe from the supervisor: it carries the start orders, and closes when the supervisor dies."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_inheritable(descriptor, False)
        self._rest = b""

    def read_line(self) -> bytes:
        """Return the first line; empty if the parent died before it wrote one."""
        while b"\n" not in self._rest and len(self._rest) < ORDERS_BYTES_MAX:
            part = os.read(self._descriptor, 65536)
            if not part:
                return b""
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def watch(self, on_end: Callable[[], None]) -> None:
        """Call `on_end` from a thread once the parent is dead."""
        threading.Thread(target=self._wait, args=(on_end,), name="holdfast-parent-pipe", daemon=True).start()

    def _wait(self, on_end: Callable[[], None]) -> None:
        while os.read(self._descriptor, 65536):
            pass
        on_end()


class ParentWatch:
    """Ends this process when the supervisor dies: at once before there is a worker, with a short stop afterwards."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._stop: Callable[[], None] | None = None

    def adopt(self, worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
        def stop() -> None:
            loop.call_soon_threadsafe(lambda: worker.stop(within_seconds=self._lease_seconds))

        self._stop = stop

    def on_end(self) -> None:
        if self._stop is None:
            leave(ExitCode.STOPPED)
        log.error("the parent process is gone; handing back and leaving")
        self._stop()
        threading.Event().wait(self._lease_seconds + SIGN_OFF_SECONDS)
        leave(ExitCode.OVERDUE)


async def _work(
    app: App, orders: Orders, deadline_page: DeadlinePage, parent_watch: ParentWatch
) -> tuple[ExitCode, bool]:
    """Run one worker to its end. Return the exit code, and whether nothing of it still runs."""
    settings = app.settings
    try:
        async with _transport(orders.url, settings) as transport:
            worker = Worker(
                transport,
                app.actions,
                flows=app.flows,
                queues=orders.queues,
                slots=orders.slots,
                name=orders.name,
                version=app.version,
                schedules=app.schedules.values(),
                origin=f"app:{app.name}",
                isolator=Isolated(orders),
                datasets=app.datasets,
                process=SupervisedProcess(deadline_page, settings.worker.lease_seconds),
            )
            stop_requested = asyncio.Event()
            _stop_on_signals(worker, stop_requested)
            parent_watch.adopt(worker, asyncio.get_running_loop())
            worker.on_ready = partial(_log_ready, worker, orders.url)
            await worker.run()
            if worker.state.is_drained:
                return ExitCode.DRAINED, worker.is_idle
            return (ExitCode.STOPPED if stop_requested.is_set() else ExitCode.AWAY), worker.is_idle
    except Unavailable as error:
        log.error("%s", error)
        return ExitCode.AWAY, True
    except HoldfastError as error:
        log.error("%s", error)
        return ExitCode.CANNOT_LOAD, True


def _log_ready(worker: Worker, url: str) -> None:
    """Log what this worker serves, and where its tasks come from."""
    if not worker.actions:
        log.warning("the app has no actions: this worker will run nothing")
    queues = "every queue" if worker.queues is None else f"queues {', '.join(worker.queues)}"
    actions = sorted(worker.actions)
    shown = ", ".join(actions[:ACTIONS_SHOWN_MAX]) + (", …" if len(actions) > ACTIONS_SHOWN_MAX else "")
    log.info(
        "worker %s is ready: %s, %s, %s slots, %s (%s)",
        worker.worker_id,
        without_password(url),
        queues,
        worker.slots,
        "1 action" if len(actions) == 1 else f"{len(actions)} actions",
        shown or "none",
    )


@contextlib.asynccontextmanager
async def _transport(url: str, settings: Settings) -> AsyncIterator[Engine | Transport]:
    """Open the transport to the database or to the server."""
    if is_server(url):
        from holdfast.worker.transport.http import HttpTransport

        yield HttpTransport(url, settings)
        return
    async with contextlib.AsyncExitStack() as stack:
        yield await retry_until_available(
            lambda: stack.enter_async_context(Engine(url, settings)), seconds_max=START_SECONDS_MAX
        )


class SupervisedProcess:
    """This process, killed by its supervisor at the published deadline, or by a kernel timer a little later."""

    def __init__(self, deadline_page: DeadlinePage, lease_seconds: float) -> None:
        self._deadline_page = deadline_page
        self._kill_timer = KillTimer()
        self._delay_seconds = lease_seconds * KILL_TIMER_DELAY

    def publish_kill_at(self, worker_id: int, kill_at: float) -> None:
        self._deadline_page.worker_id = worker_id
        self._deadline_page.kill_at = kill_at
        self._kill_timer.set(kill_at + self._delay_seconds)

    def exit(self) -> None:
        leave(ExitCode.OVERDUE)


def _stop_on_signals(worker: Worker, stop_requested: asyncio.Event) -> None:
    def stop(within_seconds: float | None) -> None:
        stop_requested.set()
        worker.stop(within_seconds=within_seconds)

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop, None)
    loop.add_signal_handler(signal.SIGINT, stop, 0.0)
    # The terminal belongs to the supervisor, which forwards its signals.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def leave(exit_code: ExitCode) -> NoReturn:
    """End this process now, whatever its threads are doing."""
    os._exit(exit_code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
