"""A real pgbouncer in transaction mode before the databases of the tests, with few connections for many callers.

It is the system's own (`apt-get install pgbouncer`, `brew install pgbouncer`); where there is none, these tests are
skipped and say so.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from tests.waiting import poll

from holdfast.store.embedded import account as accounts
from holdfast.testing.databases import Databases, with_database

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
MISSING = "pgbouncer is not installed: `apt-get install pgbouncer`, or `brew install pgbouncer`"
START_SECONDS_MAX = 20.0
SERVER_CONNECTIONS = 4


@dataclass(frozen=True, slots=True)
class Pooler:
    port: int
    version: tuple[int, ...]

    def before(self, url: str) -> str:
        """The way to the same database through the pooler."""
        return f"postgresql://anybody@127.0.0.1:{self.port}{urlsplit(url).path}"


@contextmanager
def pooling(server_url: str, **settings: str) -> Iterator[Pooler]:
    """Run a pooler before a server."""
    if PROGRAM is None:
        pytest.skip(MISSING)
    account = accounts.choose(os.environ)
    with tempfile.TemporaryDirectory(prefix="holdfast-pooler-") as name:
        folder = Path(name)
        port = _free_port()
        config = folder / "pgbouncer.ini"
        config.write_text(_config(server_url, port, settings))
        folder.chmod(0o755)
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [PROGRAM, str(config)],
                stdout=log,
                stderr=log,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
            )
        try:
            _await_port(process, port, folder / "log")
            yield Pooler(port, _version())
        finally:
            process.terminate()
            process.wait(20)


def _config(server_url: str, port: int, settings: dict[str, str]) -> str:
    parts = urlsplit(server_url)
    query = parse_qs(parts.query)
    host = query["host"][0] if "host" in query else parts.hostname
    server_port = query["port"][0] if "port" in query else parts.port or 5432
    word = f" password={unquote(parts.password)}" if parts.password else ""
    lines = {
        "listen_addr": "127.0.0.1",
        "listen_port": str(port),
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": "transaction",
        "max_client_conn": "500",
        "default_pool_size": str(SERVER_CONNECTIONS),
        **settings,
    }
    database = f"* = host={host} port={server_port} user={unquote(parts.username or 'postgres')}{word}"
    return "\n".join(
        ["[databases]", database, "[pgbouncer]", *(f"{name} = {value}" for name, value in lines.items()), ""]
    )


def _version() -> tuple[int, ...]:
    said = subprocess.run([str(PROGRAM), "-V"], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, re.findall(r"\d+", said.splitlines()[0])[:2]))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    def is_open() -> bool:
        assert process.poll() is None, f"pgbouncer did not start: {log.read_text()}"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    poll(is_open, seconds_max=START_SECONDS_MAX)


@pytest.fixture(scope="session")
def server_url(holdfast_databases: Databases) -> str:
    return holdfast_databases.server_url


@pytest.fixture(scope="session")
def pooler(server_url: str) -> Iterator[Pooler]:
    with pooling(server_url) as started:
        yield started


@pytest.fixture
def holdfast_url(holdfast_url: str, pooler: Pooler) -> str:
    """A database of the test's own, through the pooler."""
    return pooler.before(holdfast_url)


@pytest.fixture
def direct_url(holdfast_url: str, server_url: str) -> str:
    """The same without the pooler."""
    return with_database(server_url, urlsplit(holdfast_url).path.removeprefix("/"))
