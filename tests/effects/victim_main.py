"""A worker process that kills itself with SIGKILL at a statement: URL APP WHEN STATEMENT."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace

from holdfast.dispatcher.engine import Engine
from holdfast.load import load_app
from holdfast.settings import Settings
from holdfast.worker.isolated import Isolated
from holdfast.worker.loop import Worker
from holdfast.worker.orders import Orders


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


async def main(url: str, app_ref: str, when: str, statement: str) -> None:
    app = load_app(app_ref)
    settings = Settings(url=url)
    settings = replace(settings, worker=replace(settings.worker, poll_seconds=0.1))
    orders = Orders(app_ref=app_ref, url=url, settings=settings, slots=2, queues=None, name="victim")
    async with Engine(url, settings) as engine:
        worker = Worker(engine, app.actions, slots=2, name="victim", isolator=Isolated(orders))
        running = asyncio.create_task(worker.run())
        await worker.ready.wait()
        engine.database.tap = Kill(when, statement)
        print("ready", flush=True)
        await running


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
