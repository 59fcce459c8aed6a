"""Many random stories on one database and one engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from holdfast.engine.engine import Engine
from holdfast.settings.settings import Settings

Play = Callable[[Engine], Awaitable[None]]


@contextmanager
def playing_on(url: str) -> Iterator[Callable[[Play], None]]:
    """Play story after story on one engine: each would else pay for a database and for planning every statement.

    Their rows stay, so that the promises are checked of all of them at the end of the test.
    """
    with asyncio.Runner() as runner:
        engine = Engine(url, Settings(), sessions_max=10)
        runner.run(engine.__aenter__())
        yield lambda play: runner.run(play(engine))
        runner.run(engine.__aexit__(None, None, None))
