"""The supervisor: a small parent process that guarantees that a worker process does not outlive its leases.

Each child publishes on its deadline page when it must be dead. After that instant the supervisor kills it, whatever it
is doing, so that its tasks never run in two processes at once. A child that died is retired: everything it started is
killed, its tasks are requeued at once, and another child replaces it.

    SIGTERM, SIGINT, SIGHUP   children finish or hand back their work within the shutdown time, then all end
    the same again            children hand back what they can at once
    a third time              children are killed

If the supervisor itself is killed, its children notice, stop and end, because nothing would enforce their leases.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Protocol

from holdfast.execution.running_attempt import FOREVER
from holdfast.net.server_url import is_server
from holdfast.settings.settings import Settings
from holdfast.store.resolve import resolve_database
from holdfast.worker.runtime.startup_retry import START_SECONDS_MAX, retry_until_available
from holdfast.worker.supervisor.http_maintenance import HttpMaintenance
from holdfast.worker.supervisor.maintenance_thread import BackgroundLoop, MaintenanceThread
from holdfast.worker.supervisor.process import Process
from holdfast.worker.supervisor.start_orders import ExitCode, Orders
from holdfast.worker.transport.http import fetch_terms

log = logging.getLogger("holdfast.parent")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
HAND_BACK_SECONDS = 10.0
"""How long children may take to hand back and end, after the time they have to finish."""

YOUNG_SECONDS = 10.0
RESTART_SECONDS_FIRST, RESTART_SECONDS_MAX = 0.1, 30.0
CANNOT_LOAD_PAUSE_SECONDS = 5.0


def run_workers(
    app_ref: str,
    settings: Settings,
    *,
    processes: int,
    slots: int,
    queues: list[str] | None,
    loops: bool,
    packs: Sequence[str] = (),
    background_loop: BackgroundLoop | None = None,
    logs_failures: bool = True,
) -> int:
    """Run workers until a stop signal arrives, and return the program's exit code. Call it from the main thread.

    `packs` are folders whose actions run in addition to the app's, or alone where `app_ref` is empty. If the settings'
    URL is a server's, workers use HTTP and the server runs the maintenance loops. `background_loop` is a loop to run
    concurrently with the maintenance loops. `logs_failures` logs each failed attempt.
    """
    with _open_maintenance(settings, loops, background_loop) as (url, settings, maintenance):
        orders = Orders(
            app_ref=app_ref,
            url=url,
            settings=settings,
            slots=slots,
            queues=queues,
            name="",
            packs=list(packs),
            logs_failures=logs_failures,
        )
        return _Parent(orders, maintenance, processes=processes).run()


@contextlib.contextmanager
def _open_maintenance(
    settings: Settings, loops: bool, background_loop: BackgroundLoop | None
) -> Iterator[tuple[str, Settings, WorkerRetirer]]:
    """Yield what workers connect to: its URL, the settings it requires, and the object that retires dead workers."""
    if settings.url is not None and is_server(settings.url):
        url, location = settings.url, None
        settings = asyncio.run(
            retry_until_available(partial(fetch_terms, url, settings), seconds_max=START_SECONDS_MAX)
        )
        maintenance: MaintenanceThread | HttpMaintenance = HttpMaintenance(url, settings)
    else:
        location = resolve_database(settings)
        url = location.url
        maintenance = MaintenanceThread(
            url, settings, migrates=location.is_embedded, loops=loops, background_loop=background_loop
        )
    try:
        maintenance.start()
        try:
            yield url, settings, maintenance
        finally:
            maintenance.close(seconds_max=HAND_BACK_SECONDS)
    finally:
        if location is not None:
            location.close()


class WorkerRetirer(Protocol):
    """Requeues the tasks of a dead worker."""

    def retire_worker(self, worker_id: int, *, was_asked_to_stop: bool) -> None: ...


class RestartDelay:
    """The restart delay of one child slot: short after a long life, doubled while processes keep dying young."""

    def __init__(self) -> None:
        self.deaths = 0
        """How many processes in a row died young."""

    def pause_seconds(self, *, lived_seconds: float) -> float:
        """Return how long to wait after a death before the next start."""
        self.deaths = 1 if lived_seconds >= YOUNG_SECONDS else self.deaths + 1
        return float(min(RESTART_SECONDS_MAX, RESTART_SECONDS_FIRST * 2 ** min(self.deaths - 1, 30)))


@dataclass(slots=True)
class _ChildSlot:
    """The slot of one child process, filled again whenever the child ends."""

    number: int
    process: Process | None = None
    start_at: float = 0.0
    is_given_up: bool = False
    """Whether its worker was drained, so that no other child is started."""
    restarts: RestartDelay = field(default_factory=RestartDelay)


class _Parent:
    def __init__(self, orders: Orders, maintenance: WorkerRetirer, *, processes: int) -> None:
        self._orders = orders
        self._maintenance = maintenance
        self._child_slots = [_ChildSlot(number) for number in range(1, processes + 1)]
        self._tick_seconds = max(0.005, orders.settings.worker.lease_seconds / 50)
        self._stops_received = 0
        self._stops_forwarded = 0
        self._kill_at = FOREVER
        self._has_worked = False
        self._exit_code = 0

    def run(self) -> int:
        with self._counting_stop_signals() as receiver:
            while not self._is_over():
                self._start_due()
                # A deadline page can change at any time, so the wait is short; a signal or a child's death ends it
                # early.
                select.select([receiver], [], [], self._tick_seconds)
                with contextlib.suppress(BlockingIOError):
                    receiver.recv(4096)
                self._enforce()
                self._forward_stop()
                for slot in self._child_slots:
                    self._retire_if_dead(slot)
        return self._exit_code

    @property
    def _is_stopping(self) -> bool:
        return self._stops_received > 0

    def _is_over(self) -> bool:
        return all(slot.process is None and (self._is_stopping or slot.is_given_up) for slot in self._child_slots)

    def _start_due(self) -> None:
        for slot in self._child_slots:
            is_wanted = not (self._is_stopping or slot.is_given_up)
            if slot.process is None and is_wanted and time.monotonic() >= slot.start_at:
                slot.process = Process(self._orders)
                log.info("worker process %s started (pid %s)", slot.number, slot.process.pid)

    def _enforce(self) -> None:
        """Kill every child past the instant on its deadline page, and all of them past the end of a stop."""
        now = time.monotonic()
        for slot in self._child_slots:
            process = slot.process
            if process is None or process.was_killed:
                continue
            self._has_worked = self._has_worked or process.is_registered
            if process.deadline_page.kill_at <= now:
                late_ms = (now - process.deadline_page.kill_at) * 1000
                log.error(
                    "worker process %s (pid %s) could not renew its leases or stop in time: killed (%.0f ms after)",
                    slot.number,
                    process.pid,
                    late_ms,
                )
                process.kill()
            elif self._kill_at <= now:
                log.error("worker process %s (pid %s) did not end in time: killed", slot.number, process.pid)
                process.kill()

    def _forward_stop(self) -> None:
        """Forward the stop signals received so far to the children."""
        if self._stops_forwarded == self._stops_received:
            return
        self._stops_forwarded = self._stops_received
        now = time.monotonic()
        match self._stops_received:
            case 1:
                log.info("stopping: children finish their work")
                self._signal_all(signal.SIGTERM)
                self._kill_at = now + self._orders.settings.worker.shutdown_seconds + HAND_BACK_SECONDS
            case 2:
                log.info("stopping at once: children hand back their work")
                self._signal_all(signal.SIGINT)
                self._kill_at = now + HAND_BACK_SECONDS
            case _:
                self._kill_at = now

    def _signal_all(self, which: signal.Signals) -> None:
        for slot in self._child_slots:
            if slot.process is not None:
                slot.process.signal(which)

    def _retire_if_dead(self, slot: _ChildSlot) -> None:
        """Retire a child that died, and schedule its successor."""
        process = slot.process
        if process is None or not process.is_gone():
            return
        code = process.exit_code
        assert code is not None
        worker_id = process.deadline_page.worker_id
        lived_seconds = time.monotonic() - process.started_at
        process.forget()
        slot.process = None
        if worker_id:
            self._has_worked = True
            self._maintenance.retire_worker(worker_id, was_asked_to_stop=self._is_stopping)
        if self._is_stopping:
            log.info("worker process %s ended: %s", slot.number, _how_it_ended(code))
        elif code == ExitCode.DRAINED:
            log.info("worker process %s was drained and left; none is started in its place", slot.number)
            slot.is_given_up = True
        elif code == ExitCode.CANNOT_LOAD and not self._has_worked:
            named = " and ".join(filter(None, [self._orders.app_ref, *self._orders.packs]))
            log.error("no worker for %s can start, for the reason given above; giving up", named)
            self._exit_code = int(ExitCode.CANNOT_LOAD)
            self._stops_received = max(self._stops_received, 1)
        else:
            self._plan_restart(slot, code, lived_seconds)

    def _plan_restart(self, slot: _ChildSlot, code: int, lived_seconds: float) -> None:
        pause = slot.restarts.pause_seconds(lived_seconds=lived_seconds)
        if code == ExitCode.CANNOT_LOAD:
            pause = max(pause, CANNOT_LOAD_PAUSE_SECONDS)
        slot.start_at = time.monotonic() + pause
        log.warning(
            "worker process %s ended after %.1f s: %s; starting another in %.1f s (%s in a row died young)",
            slot.number,
            lived_seconds,
            _how_it_ended(code),
            pause,
            slot.restarts.deaths,
        )

    @contextlib.contextmanager
    def _counting_stop_signals(self) -> Iterator[socket.socket]:
        """Count stop signals, and make every signal end the wait, also that of a child's death."""
        receiver, sender = socket.socketpair()
        receiver.setblocking(False)
        sender.setblocking(False)
        previous_handlers = {which: signal.signal(which, self._on_stop) for which in _wanted_signals()}
        previous_handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        previous_fd = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        try:
            yield receiver
        finally:
            signal.set_wakeup_fd(previous_fd)
            for which, handler in previous_handlers.items():
                signal.signal(which, handler)
            receiver.close()
            sender.close()

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stops_received += 1


def _wanted_signals() -> list[signal.Signals]:
    """Return the stop signals to handle. SIGHUP stays ignored if it was ignored at start: `nohup` relies on that.

    SIGINT is handled even so: shells without job control make background processes ignore it, and a SIGINT sent by hand
    is intended.
    """
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [which for which in STOP_SIGNALS if not (which is signal.SIGHUP and is_ignored)]


def _how_it_ended(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    with contextlib.suppress(ValueError):
        return f"exit code {code} ({ExitCode(code).name.lower()})"
    return f"exit code {code}"
