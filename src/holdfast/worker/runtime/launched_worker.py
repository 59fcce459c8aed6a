"""The launched worker: attaches to the one attempt it was launched for, runs it with heartbeats, settles it, and ends.

It serves no queue and claims nothing. It uses the database or a server, like any worker. It has no supervisor to
enforce its lease, so the kernel's timer does.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from holdfast.authoring.app import App
from holdfast.core.tasks.classify import RetryReason
from holdfast.core.tasks.failure import Failure
from holdfast.core.tasks.outcome import Failed
from holdfast.engine.engine import Engine
from holdfast.engine.leases import Claimed, report_of
from holdfast.errors import LeaseLost, Unavailable
from holdfast.net.server_url import is_server
from holdfast.settings.settings import Settings
from holdfast.store.database import ANY_DB_ERROR
from holdfast.worker.isolation.pool import Isolated
from holdfast.worker.runtime.startup_retry import retry_until_available
from holdfast.worker.runtime.worker import Worker
from holdfast.worker.supervisor.child import leave
from holdfast.worker.supervisor.kill_timer import KillTimer
from holdfast.worker.supervisor.start_orders import ExitCode, Orders
from holdfast.worker.transport.contract import LaunchedTransport
from holdfast.worker.transport.database import DatabaseTransport

log = logging.getLogger("holdfast.worker")

EARLY_SECONDS = 0.5
"""Pause between attempts to attach to a launch that was taken back and is due again."""
TRIES_MAX = 20
"""How often an engine that does not answer is asked again."""


class SingleAttemptWorker(Worker):
    """A worker that runs exactly one attempt."""

    def __init__(self, transport: LaunchedTransport, *arguments: Any, **options: Any) -> None:
        super().__init__(transport, *arguments, queues=[], slots=1, **options)
        self._launched_transport = transport
        self._is_settled_already = False

    async def run_attached(self, task_id: int, attempt: int, token: str) -> bool:
        """Run the attempt, and return whether its outcome was accepted.

        Raise `LeaseLost` if there is nothing to attach to.
        """
        async with self.signed_on():
            await self._attach(task_id, attempt, token)
            await self._wind_down()
        return self.state.accepted_count > 0 or self._is_settled_already

    def _claimed_actions(self) -> list[str]:
        """Return no actions: this worker runs only the task it was launched for."""
        return []

    async def _register(self) -> None:
        """Register, waiting for an engine that is briefly away: another launch would cost more."""
        seconds = self.state.settings.launch_seconds
        await retry_until_available(super()._register, seconds_max=seconds, is_over=lambda: self.state.is_stopping)

    async def _attach(self, task_id: int, attempt: int, token: str) -> None:
        """Exchange the token for a lease. If the response is lost, `resume` finds the lease."""
        state = self.state
        waits_until = time.monotonic() + state.settings.launch_seconds
        for _ in range(TRIES_MAX):
            while await self.exchange_loop.exchange(0):
                if state.slots_taken or state.reports:
                    return
                try:
                    await self._exchange_token(task_id, attempt, token)
                except LeaseLost as error:
                    is_early = error.fields.get("is_early") and time.monotonic() < waits_until
                    if not is_early or state.is_stopping:
                        raise
                    await asyncio.sleep(EARLY_SECONDS)
                except ANY_DB_ERROR as error:
                    await self.exchange_loop.lose_connection(error)
                    break
                else:
                    return
        engine = "server" if is_server(self.transport.settings.url) else "database"
        raise Unavailable(f"The {engine} does not answer.", code=f"{engine}_unreachable")

    async def _exchange_token(self, task_id: int, attempt: int, token: str) -> None:
        sent_at = time.monotonic()
        claimed = await self._launched_transport.attach(task_id, attempt, token)
        if not claimed:
            # The task's input could not be built, and the engine settled it as failed.
            self._is_settled_already = True
        runnable = [task for task in claimed if await self._has_action(task)]
        await self.state.start(runnable, sent_at)

    async def _has_action(self, claimed: Claimed) -> bool:
        """Return whether this app has the action. If not, report a failure: another launch could not do better."""
        names = self.transport.names
        await names.learn([claimed.lane_id], [claimed.policy_id])
        action = names.lane(claimed.lane_id).action
        if action in self.actions:
            return True
        message = f"The launched worker has no action {action}."
        outcome = Failed(Failure(code=RetryReason.ACTION_NOT_FOUND, message=message))
        self.state.reports.append(report_of(claimed, outcome))
        return False


class LaunchedProcess:
    """The process of a launched worker: no supervisor enforces its lease, so the kernel's timer does."""

    def __init__(self) -> None:
        self._kill_timer = KillTimer()

    def publish_kill_at(self, worker_id: int, kill_at: float) -> None:
        self._kill_timer.set(kill_at)

    def exit(self) -> None:
        leave(ExitCode.OVERDUE)


@asynccontextmanager
async def transport_to(url: str, settings: Settings) -> AsyncIterator[LaunchedTransport]:
    """Return the transport to the database or to the server. A server decides lease and heartbeat times."""
    seconds = settings.worker.launch_seconds
    if is_server(url):
        from holdfast.worker.transport.http import HttpTransport, fetch_terms

        yield HttpTransport(url, await retry_until_available(partial(fetch_terms, url, settings), seconds_max=seconds))
        return
    async with AsyncExitStack() as stack:
        engine = await retry_until_available(
            lambda: stack.enter_async_context(Engine(url, settings, sessions_max=4)), seconds_max=seconds
        )
        yield DatabaseTransport(engine)


async def run_attached(
    app: App, url: str, *, app_ref: str, packs: Sequence[str], task_id: int, attempt: int, token: str
) -> bool:
    """Run the worker that was launched for this attempt. Return whether it settled the attempt."""
    name = f"launched:{task_id}.{attempt}"
    async with transport_to(url, replace(app.settings, url=url)) as transport:
        settings = transport.settings
        orders = Orders(app_ref=app_ref, url=url, settings=settings, slots=1, queues=[], name=name, packs=list(packs))
        worker = SingleAttemptWorker(
            transport,
            app.actions,
            flows={} if is_server(url) else app.flows,
            name=name,
            version=app.version,
            isolator=Isolated(orders),
            datasets=app.datasets,
            process=LaunchedProcess(),
        )
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, worker.stop)
        loop.add_signal_handler(signal.SIGINT, lambda: worker.stop(within_seconds=0.0))
        is_settled = await worker.run_attached(task_id, attempt, token)
        if not worker.is_idle:
            leave(ExitCode.OVERDUE)
        return is_settled
