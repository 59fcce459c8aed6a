"""PostgreSQL servers of a test's own that are copied, replicated and restored."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.skips import ABSENT

from holdfast.store.database import Database
from holdfast.store.embedded.account import choose
from holdfast.store.migrate import migrate

NEEDED = ("initdb", "pg_ctl", "postgres", "pg_basebackup", "pg_dump", "pg_restore", "psql")
PLACES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin")
CONFIGURATION = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
fsync = off
shared_buffers = '32MB'
max_wal_senders = 4
wal_level = replica
hot_standby = on
autovacuum = off
jit = off
"""


def programs() -> Path:
    """A directory with all that is needed; skips the test where there is none."""
    named = [Path(os.environ["HOLDFAST_PG_BIN"])] if "HOLDFAST_PG_BIN" in os.environ else []
    found = [
        *named,
        *(one for place in PLACES for one in sorted(Path("/").glob(place.removeprefix("/")), reverse=True)),
    ]
    for directory in found:
        if all((directory / name).exists() for name in NEEDED):
            return directory
    pytest.skip(f"pg_basebackup {ABSENT}apt-get install postgresql (the server with its client programs)")


class Cluster:
    """One server with its data; `url` of its database postgres."""

    def __init__(self, folder: Path, bin: Path) -> None:
        self.data = folder
        self._bin = bin
        self.port = _free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def initialize(self) -> Cluster:
        self.run(
            "initdb", "-D", str(self.data), "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"
        )
        return self.configure().start()

    def configure(self) -> Cluster:
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(f"{CONFIGURATION}port = {self.port}\n")
        return self

    def start(self) -> Cluster:
        self.run("pg_ctl", "-D", str(self.data), "-w", "-s", "-l", str(self.data / "log"), "start")
        return self

    def stop(self) -> None:
        self.run("pg_ctl", "-D", str(self.data), "-w", "-s", "-m", "fast", "stop")

    def crash(self) -> None:
        self.run("pg_ctl", "-D", str(self.data), "-w", "-s", "-m", "immediate", "stop")

    def take_over(self, other: Cluster) -> None:
        """Serve at the address of another one, which is gone."""
        self.stop()
        self.port, self.url = other.port, other.url
        self.configure().start()

    def promote(self) -> None:
        self.run("pg_ctl", "-D", str(self.data), "-w", "-s", "promote")

    def copy(self, folder: Path, *options: str) -> Cluster:
        """A base backup of it, not started; with `-R` it becomes a replica."""
        self.run(
            "pg_basebackup", "-d", self.url, "-D", str(folder), "-X", "stream", "-c", "fast", "--no-sync", *options
        )
        return Cluster(folder, self._bin).configure()

    def dump_into(self, other: Cluster) -> None:
        """Roles are of the cluster: the one that keeps tenants apart is made before the rows that name it."""
        dumped = self.data / "dump"
        other.run("psql", "-q", "-d", other.url, "-c", "create role holdfast_tenant nologin")
        self.run("pg_dump", "-d", self.url, "-F", "c", "-n", "holdfast", "-f", str(dumped))
        self.run("pg_restore", "-d", other.url, str(dumped))

    def run(self, program: str, *arguments: str) -> None:
        account = choose(os.environ)
        given = {} if account is None else {"user": account.uid, "group": account.gid, "extra_groups": ()}
        done = subprocess.run(
            [str(self._bin / program), *arguments] if program else arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if program != "pg_ctl" else subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            timeout=100,
            check=False,
            cwd="/",
            **given,
        )
        assert done.returncode == 0, f"{program}: {(done.stdout or b'')[-500:]!r} {self._log()}"

    def _log(self) -> str:
        log = self.data / "log"
        return log.read_text()[-500:] if log.exists() else ""

    def close(self) -> None:
        if (self.data / "postmaster.pid").exists():
            self.crash()


class Clusters:
    """The servers of one test."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._bin = programs()
        self._made: list[Cluster] = []
        self._template: Cluster | None = None

    def new(self) -> Cluster:
        """An empty one."""
        return self._keep(Cluster(self._folder(), self._bin)).initialize()

    def migrated(self) -> Cluster:
        """One with the schema, on which nothing has worked yet."""
        assert self._template is not None
        folder = self._folder()
        self._template.run("", "cp", "-a", str(self._template.data), str(folder))
        return self._keep(Cluster(folder, self._bin)).configure().start()

    def copy(self, one: Cluster, *options: str) -> Cluster:
        return self._keep(one.copy(self._folder(), *options)).start()

    def prepare(self) -> None:
        """Make the schema once for all that `migrated` gives."""
        self._template = self.new()
        asyncio.run(_migrate(self._template.url))
        self._template.stop()

    def _folder(self) -> Path:
        return self._root / f"data{len(self._made)}"

    def _keep(self, one: Cluster) -> Cluster:
        self._made.append(one)
        return one

    def close(self) -> None:
        """Stop them all; the next test may make others."""
        for one in self._made:
            one.close()


@contextmanager
def some_clusters() -> Iterator[Clusters]:
    root = Path(tempfile.mkdtemp(prefix="holdfast-clusters-"))
    account = choose(os.environ)
    if account is not None:
        os.chown(root, account.uid, account.gid)
    made = None
    try:
        made = Clusters(root)
        yield made
    finally:
        if made is not None:
            made.close()
        shutil.rmtree(root, ignore_errors=True)


async def _migrate(url: str) -> None:
    database = await Database(url, sessions_max=1).open()
    try:
        await migrate(database)
    finally:
        await database.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
