"""A worker process that kills itself with SIGKILL at a statement, or at the request for it: URL APP WHEN STATEMENT."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from typing import Any

from holdfast.authoring.loader import load_app
from holdfast.engine.engine import Engine
from holdfast.settings.settings import Settings
from holdfast.worker.isolation.pool import Isolated
from holdfast.worker.runtime.worker import Worker
from holdfast.worker.supervisor.start_orders import Orders
from holdfast.worker.transport import http_effects
from holdfast.worker.transport.http import HttpTransport, fetch_terms
from holdfast.worker.transport.http_connection import HttpConnection


class Kill:
    """A tap that kills its process before or after the named statement."""

    def __init__(self, when: str, statement: str) -> None:
        self._when = when
        self._mark = f"-- holdfast: {statement}\n"

    def before(self, statement: str) -> None:
        self._strike("before", statement)

    def after(self, statement: str) -> None:
        self._strike("after", statement)

    def _strike(self, when: str, statement: str) -> None:
        if when == self._when and statement.startswith(self._mark):
            os.kill(os.getpid(), signal.SIGKILL)


PATHS = {"open_effect": "/internal/effects", "answer_effect": "/internal/effects/answer"}
"""What a worker asks a server for instead of a statement."""


class DeadlyCalls(HttpConnection):
    """Calls to a server that kill their process before or after the one for a statement."""

    deadly = ("", "")

    async def post(self, path: str, *given: Any, **options: Any) -> Any:
        self._strike("before", path)
        answer = await super().post(path, *given, **options)
        self._strike("after", path)
        return answer

    def _strike(self, when: str, path: str) -> None:
        if self.deadly == (when, path):
            os.kill(os.getpid(), signal.SIGKILL)


async def main(url: str, app_ref: str, *deadly: str) -> None:
    if url.startswith("http"):
        http_effects.HttpConnection = DeadlyCalls
        settings = await fetch_terms(url, Settings(env="local"))
        await work(HttpTransport(url, settings), url, app_ref, settings, *deadly)
        return
    settings = Settings(url=url)
    settings = replace(settings, worker=replace(settings.worker, poll_seconds=0.1))
    async with Engine(url, settings) as engine:
        await work(engine, url, app_ref, settings, *deadly)


async def work(line: Any, url: str, app_ref: str, settings: Settings, when: str, statement: str) -> None:
    orders = Orders(app_ref=app_ref, url=url, settings=settings, slots=2, queues=None, name="victim")
    worker = Worker(line, load_app(app_ref).actions, slots=2, name="victim", isolator=Isolated(orders))
    running = asyncio.create_task(worker.run())
    await worker.ready.wait()
    if isinstance(line, Engine):
        line.database.tap = Kill(when, statement)
    DeadlyCalls.deadly = (when, PATHS.get(statement, ""))
    print("ready", flush=True)
    await running


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
