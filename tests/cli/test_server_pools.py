"""The maintenance loops of a server have sessions of their own: requests cannot use them up."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from holdfast.cli.commands import server
from holdfast.engine.maintenance.loops import Loops
from holdfast.server import app as api
from holdfast.settings.settings import Settings


@dataclass
class Place:
    url: str
    is_embedded: bool = False


class Shell:
    def talk(self, _: str) -> None:
        """Nobody listens."""


async def test_requests_that_hold_every_session_leave_the_loops_theirs(holdfast_url, monkeypatch):
    engines = []

    @contextlib.asynccontextmanager
    async def listening(engine):
        engines.append(engine)
        yield api.Addresses(url="", internal_url="")

    async def look(_, loops_engine):
        [engine] = engines
        async with contextlib.AsyncExitStack() as held:
            for _ in range(engine.database.use.size):
                await held.enter_async_context(engine.database.session())
            await Loops(loops_engine).reap()
        return 0

    monkeypatch.setattr(api, "listening", listening)
    monkeypatch.setattr(server, "_loop_until", look)
    settings = Settings(env="local", unsafe=True)
    assert await server.run_loops(Place(holdfast_url), settings, shell=Shell(), with_http=True) == 0
