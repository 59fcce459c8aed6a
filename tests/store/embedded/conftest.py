"""Homes to throw away, and real processes that use them and can be killed.

Most tests begin with a copy of a home that was made once and stopped: making data takes most of a start.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.waiting import poll

import holdfast.errors
from holdfast.store.embedded import home as homes
from holdfast.store.embedded import locks, postmaster
from holdfast.store.embedded.server import start, status

THROW_AWAY = {"fsync": "off", "shared_buffers": "16MB"}
# Another interpreter than this one finds Holdfast and what it needs here as well.
IMPORTED_FROM = [str(Path(found).parents[1]) for found in (holdfast.errors.__file__, asyncpg.__file__)]
USER_PROGRAM = """
import json, sys
from pathlib import Path
from holdfast.errors import HoldfastError
from holdfast.store.embedded.server import start
try:
    server = start(Path(sys.argv[1]), settings=json.loads(sys.argv[2]))
except HoldfastError as error:
    print(json.dumps({"code": error.code, "text": str(error)}), flush=True)
else:
    print(json.dumps({"how": server.how, "url": server.url, "seconds": server.seconds}), flush=True)
    sys.stdin.read()
"""


class User:
    """Another process that starts or attaches to the server of a home and stays until told."""

    def __init__(self, home: Path, *, python: str = sys.executable, uid: int | None = None, **options: Any) -> None:
        self.process = subprocess.Popen(
            [python, "-c", USER_PROGRAM, str(home), json.dumps(THROW_AWAY)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(IMPORTED_FROM)},
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
            cwd="/",
            **options,
        )

    def answer(self) -> dict[str, Any]:
        """Wait until it has the server, or an error."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def wait_until() -> Callable[..., None]:
    return poll


@pytest.fixture
def throw_away() -> dict[str, str]:
    return dict(THROW_AWAY)


@pytest.fixture
def query() -> Callable[[str, str], Any]:
    """Run one statement on a server and return its first value."""

    async def run(url: str, statement: str) -> Any:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    return lambda url, statement: asyncio.run(run(url, statement))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that any account may pass through; whatever runs below it is stopped at the end."""
    made = Path(tempfile.mkdtemp(prefix="hf-test-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    for lock in made.rglob("server.lock"):
        poll(lambda lock=lock: not locks.is_taken(lock))
    for record in made.rglob("server.json"):
        shutil.rmtree(json.loads(record.read_bytes())["socket_directory"], ignore_errors=True)
    shutil.rmtree(made)


@pytest.fixture
def new_home(folder: Path) -> Path:
    """A home that does not exist yet."""
    return folder / "home"


@pytest.fixture(scope="session")
def stopped_home() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="hf-test-", dir="/tmp"))
    made.chmod(0o755)
    start(made / "home", settings=THROW_AWAY).close()
    poll(lambda: not locks.is_taken(made / "home" / "server.lock"))
    yield made / "home"
    shutil.rmtree(made)


@pytest.fixture
def copy_home() -> Callable[[Path, Path], None]:
    """Copy a home with its owners and modes, as a backup would."""
    return lambda source, target: subprocess.run(["cp", "-a", source, target], check=True) and None


@pytest.fixture
def home(stopped_home: Path, folder: Path, copy_home: Callable[[Path, Path], None]) -> Path:
    """A home with data, not running."""
    copy_home(stopped_home, folder / "home")
    return folder / "home"


@pytest.fixture
def user(folder: Path) -> Iterator[Callable[..., User]]:
    """Start other processes that use a home; those left at the end are killed."""
    users: list[User] = []

    def begin(home: Path, **options: Any) -> User:
        users.append(User(home, **options))
        return users[-1]

    yield begin
    for one in users:
        one.kill()


@pytest.fixture
def processes() -> Callable[[Path], dict[str, int]]:
    """Return the ids of the keeper and the postmaster of a running home."""

    def find(home: Path) -> dict[str, int]:
        pid = status(home).pid
        assert pid is not None
        parent = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]
        return {"postmaster": pid, "keeper": int(parent)}

    return find


@pytest.fixture
def kill() -> Callable[[int], None]:
    return lambda pid: os.kill(pid, signal.SIGKILL)


@pytest.fixture
def is_stopped() -> Callable[[Path], bool]:
    """Tell whether nothing of a home's server is left, neither a process nor its pid file."""

    def check(home: Path) -> bool:
        place = homes.locate(home)
        major = place.major()
        file_is_gone = major is None or postmaster.read(place.data(major)) is None
        return file_is_gone and not locks.is_taken(place.server_lock)

    return check
