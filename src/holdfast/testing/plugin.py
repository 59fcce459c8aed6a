"""Pytest fixtures: put `pytest_plugins = ["holdfast.testing.plugin"]` in the top conftest.

`holdfast_url` is an empty, migrated database for the test; `holdfast_engine`, `holdfast_clock` and
`holdfast_harness` work on it. `engine`, `clock` and `harness` are aliases; a suite that needs these names for
something else may define its own fixtures. The server is that of HOLDFAST_TEST_URL, else an embedded one, started when
a test first needs it and shared by all processes of the run. The asynchronous fixtures need pytest-asyncio.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.engine.engine import Engine
from holdfast.settings.settings import Settings
from holdfast.testing.clock import DatabaseClock
from holdfast.testing.databases import (
    HOME_VARIABLE,
    URL_VARIABLE,
    Databases,
    remove_home,
    start_throw_away,
    throw_away_home,
)
from holdfast.testing.engine_harness import EngineHarness
from holdfast.testing.run_coroutine import run_coroutine

UNSAFE_VARIABLE = "HOLDFAST_UNSAFE"
_made_home = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Choose one home for the run; the processes that pytest-xdist starts inherit it."""
    if HOME_VARIABLE not in os.environ and URL_VARIABLE not in os.environ:
        home = throw_away_home()
        os.environ[HOME_VARIABLE] = str(home)
        config.stash[_made_home] = home
    # Test data need not survive a crash, so the server is not durable. Processes started by tests inherit this setting.
    os.environ.setdefault(UNSAFE_VARIABLE, "1")


def pytest_unconfigure(config: pytest.Config) -> None:
    home = config.stash.get(_made_home, None)
    if home is not None:
        os.environ.pop(HOME_VARIABLE, None)
        remove_home(home)


@pytest.fixture(scope="session")
def holdfast_databases() -> Iterator[Databases]:
    """The server of this run, and its temporary databases."""
    url = os.environ.get(URL_VARIABLE)
    server = None if url else start_throw_away(Path(os.environ[HOME_VARIABLE]))
    databases = Databases(server.url if server else url or "")
    try:
        yield databases
    finally:
        run_coroutine(databases.close())
        if server:
            server.close()


@pytest.fixture
def holdfast_url(holdfast_databases: Databases) -> Iterator[str]:
    """An empty, migrated database for one test."""
    url = run_coroutine(holdfast_databases.take())
    yield url
    run_coroutine(holdfast_databases.give_back(url))


@pytest.fixture
def holdfast_settings() -> Settings:
    """The settings that the other fixtures use; override it to change them."""
    return Settings()


@pytest_asyncio.fixture
async def holdfast_engine(holdfast_url: str, holdfast_settings: Settings) -> AsyncIterator[Engine]:
    """An open engine on the test's database."""
    async with Engine(holdfast_url, holdfast_settings, sessions_max=30) as opened:
        yield opened


@pytest_asyncio.fixture
async def holdfast_clock(holdfast_engine: Engine) -> AsyncIterator[DatabaseClock]:
    """The clock of the test's database."""
    made = DatabaseClock(holdfast_engine.database)
    yield made
    await made.reset()


@pytest.fixture
def holdfast_harness(holdfast_engine: Engine) -> EngineHarness:
    """The engine's functions, one step at a time."""
    return EngineHarness(holdfast_engine)


@pytest.fixture
def engine(holdfast_engine: Engine) -> Engine:
    """An alias of `holdfast_engine`."""
    return holdfast_engine


@pytest.fixture
def clock(holdfast_clock: DatabaseClock) -> DatabaseClock:
    """An alias of `holdfast_clock`."""
    return holdfast_clock


@pytest.fixture
def harness(holdfast_harness: EngineHarness) -> EngineHarness:
    """An alias of `holdfast_harness`."""
    return holdfast_harness
