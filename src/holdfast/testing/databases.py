"""Temporary databases: migrated once into a template, cloned for each test, dropped afterwards.

The server is that of HOLDFAST_TEST_URL, or an embedded one with temporary data. Any number of test processes may share
a server: an advisory lock ensures that the template is created once, and each clone has a unique name.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from holdfast.store.database import Database
from holdfast.store.embedded import home as homes
from holdfast.store.embedded import locks
from holdfast.store.embedded.server import EmbeddedServer, start
from holdfast.store.migrate import known, migrate
from holdfast.testing.run_coroutine import is_on_shared_loop

URL_VARIABLE = "HOLDFAST_TEST_URL"
HOME_VARIABLE = "HOLDFAST_TEST_HOME"
THROW_AWAY_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_connections": "300",
    "autovacuum": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "256MB",
    # A test runs each statement a few times; without this the server would make a new plan for each of the first five.
    "plan_cache_mode": "force_generic_plan",
}
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 2 * 1024**3
PREFIX = "holdfast-test-"
STOP_SECONDS_MAX = 20.0
LEFT_BEHIND_SECONDS = 3600.0
KEPT_MAX = 2
_TEMPLATE_LOCK = 0x686F6C6474657374


class Databases:
    """Creates and drops databases with the current schema on one server."""

    def __init__(self, server_url: str) -> None:
        self.server_url = server_url
        scripts = "".join(migration.script for migration in known())
        self._template = f"holdfast_template_{hashlib.sha256(scripts.encode()).hexdigest()[:12]}"
        self._is_prepared = False
        self._kept: list[asyncpg.Connection] = []
        self._spare: asyncio.Task[str] | None = None
        self._dropping: set[asyncio.Task[None]] = set()

    async def create(self) -> str:
        """Clone the template; return the URL of the clone."""
        return await self._clone_template()

    async def take(self) -> str:
        """Return a clone, prepared in advance if possible, and prepare the next. Call it through `run_coroutine`."""
        assert is_on_shared_loop(), "a database prepared in the background needs an event loop that keeps running"
        spare, self._spare = self._spare, None
        found = await (spare or self._clone_template())
        self._spare = asyncio.create_task(self._clone_template(), name="holdfast-spare")
        return found

    async def give_back(self, url: str) -> None:
        """Drop a clone in the background. Call it through `run_coroutine`."""
        assert is_on_shared_loop(), "a database dropped in the background needs an event loop that keeps running"
        dropping = asyncio.create_task(self.drop(url), name="holdfast-drop")
        self._dropping.add(dropping)
        dropping.add_done_callback(self._dropping.discard)

    async def close(self) -> None:
        """Drop the prepared clone, and close the connections."""
        spare, self._spare = self._spare, None
        if spare is not None:
            await self.drop(await spare)
        await asyncio.gather(*self._dropping, return_exceptions=True)
        kept, self._kept = self._kept, []
        for connection in kept:
            await connection.close()

    async def _clone_template(self) -> str:
        name = f"holdfast_test_{uuid.uuid4().hex}"
        async with self._maintenance() as connection:
            if not self._is_prepared:
                await self._prepare(connection)
            await connection.execute(f"create database {name} template {self._template} strategy file_copy")
        return with_database(self.server_url, name)

    async def clone(self, url: str) -> str:
        """Copy a test database with its data. It must have no connections."""
        name = f"holdfast_test_{uuid.uuid4().hex}"
        async with self._maintenance() as connection:
            await connection.execute(f"create database {name} template {_name_of(url)} strategy file_copy")
        copy = with_database(self.server_url, name)
        # Clear the epoch, so that the copy is not taken for a restored database when it is first opened.
        opened = await asyncpg.connect(copy)
        try:
            await opened.execute("update holdfast.epoch set started_at = null")
        finally:
            await opened.close()
        return copy

    async def drop(self, url: str) -> None:
        """Drop a clone, even if it has connections."""
        async with self._maintenance() as connection:
            await connection.execute(f"drop database if exists {_name_of(url)} with (force)")

    async def _prepare(self, connection: asyncpg.Connection) -> None:
        """Create the template if no other process has. It gets its final name only when it is complete."""
        draft = f"{self._template}_draft"
        await connection.execute("select pg_advisory_lock($1)", _TEMPLATE_LOCK)
        try:
            if not await connection.fetchval("select true from pg_database where datname = $1", self._template):
                await connection.execute(f"drop database if exists {draft} with (force)")
                await connection.execute(f"create database {draft}")
                database = await Database(with_database(self.server_url, draft), sessions_max=1).open()
                try:
                    await migrate(database)
                finally:
                    await database.close()
                await connection.execute(f"alter database {draft} rename to {self._template}")
        finally:
            await connection.execute("select pg_advisory_unlock($1)", _TEMPLATE_LOCK)
        self._is_prepared = True

    @asynccontextmanager
    async def _maintenance(self) -> AsyncIterator[asyncpg.Connection]:
        """Yield a connection to the server.

        Under `run_coroutine` connections are kept, two because clones overlap drops.
        """
        is_keeping = is_on_shared_loop()
        kept = self._kept.pop() if is_keeping and self._kept else None
        connection = kept if kept is not None and not kept.is_closed() else await asyncpg.connect(self.server_url)
        try:
            yield connection
        finally:
            if is_keeping and len(self._kept) < KEPT_MAX:
                self._kept.append(connection)
            else:
                await connection.close()


def _name_of(url: str) -> str:
    name = urlsplit(url).path.removeprefix("/")
    assert name.startswith("holdfast_test_"), f"{name} is not a database of this class"
    return name


def with_database(url: str, name: str) -> str:
    """Return the URL of another database on the same server."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def throw_away_home() -> Path:
    """Return a new home for an embedded server that all processes of one test run share."""
    parent = MEMORY if _has_room(MEMORY) else Path(tempfile.gettempdir())
    _sweep(parent)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    folder.chmod(0o711)  # the account that runs PostgreSQL may have to pass through
    return folder / "home"


def _sweep(parent: Path) -> None:
    """Remove leftovers of killed runs that are older than an hour, because they use memory."""
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            is_old = time.time() - folder.stat().st_mtime > LEFT_BEHIND_SECONDS
        except OSError:
            continue
        if is_old and not locks.is_taken(folder / "home" / "server.lock"):
            shutil.rmtree(folder, ignore_errors=True)


def _has_room(folder: Path) -> bool:
    """Return whether the memory file system has room; it makes cloning ten times as fast."""
    return os.access(folder, os.W_OK | os.X_OK) and shutil.disk_usage(folder).free >= MEMORY_BYTES_MIN


def start_throw_away(home: Path) -> EmbeddedServer:
    """Start or attach to the server of a temporary home: fast, and not durable."""
    return start(home, settings=THROW_AWAY_SETTINGS)


def remove_home(home: Path) -> None:
    """Delete a temporary home once its server has stopped, which happens when its last user ends."""
    location = homes.locate(home)
    deadline = time.monotonic() + STOP_SECONDS_MAX
    while locks.is_taken(location.server_lock) and time.monotonic() < deadline:
        time.sleep(locks.POLL_SECONDS)
    shutil.rmtree(home.parent, ignore_errors=True)
    if location.root != home:
        shutil.rmtree(location.root, ignore_errors=True)


@contextmanager
def a_server() -> Iterator[Databases]:
    """Yield the server of this test run, or a temporary one for the block."""
    if url := os.environ.get(URL_VARIABLE):
        yield Databases(url)
        return
    shared = os.environ.get(HOME_VARIABLE)
    home = throw_away_home() if shared is None else Path(shared)
    server = start_throw_away(home)
    try:
        yield Databases(server.url)
    finally:
        server.close()
        if shared is None:
            remove_home(home)
