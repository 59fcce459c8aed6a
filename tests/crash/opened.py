"""An engine for an act: it opens the database itself, so that the fault sees its statements from the first one on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.engine.engine import Engine
from holdfast.settings.settings import Settings
from holdfast.testing.crash import Stage


@asynccontextmanager
async def opened(stage: Stage) -> AsyncIterator[Engine]:
    """An engine whose statements the fault counts, but not those that open it."""
    async with Engine(stage.url, Settings(), sessions_max=4) as engine:
        engine.database.tap = stage.tap
        yield engine
        engine.database.tap = None
