"""An embedded PostgreSQL server, shared by all processes that use the same home.

The first process starts it, the others attach, and when the last one ends the server is stopped, even if that process
was killed: each holds a shared file lock, and a keeper process waits until no process does. It touches no system
database: it has its own data, its own socket and no network port.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.errors import Unavailable
from holdfast.store.embedded import account as accounts
from holdfast.store.embedded import cluster, locks, postmaster, sockets
from holdfast.store.embedded import home as homes
from holdfast.store.embedded.account import Account
from holdfast.store.embedded.home import HomePaths
from holdfast.store.embedded.launch import StartRecord, launch, log_tail, read_record


class Share:
    """This process's share in a server: the users lock, held until closed or until the process ends.

    It has no finalizer: a garbage-collected server object must not stop the server under open connections.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def close(self) -> None:
        """Release the share. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedServer:
    """A running server and this process's share in it. `how` is "started" or "attached"."""

    url: str
    version: str
    home: Path
    how: str
    seconds: float
    _share: Share = field(repr=False, compare=False)

    def close(self) -> None:
        """Release this process's share; the last release stops the server. Idempotent."""
        self._share.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """The status of the server of a home, read without starting or changing it."""

    is_running: bool
    pid: int | None
    version: str | None
    url: str | None
    data: Path | None
    settings: Mapping[str, str]
    log: Path
    log_tail: str


def default_home() -> Path:
    """Return `$HOLDFAST_HOME`, else a folder for this project in the user's data folder for Holdfast."""
    if named := os.environ.get("HOLDFAST_HOME"):
        return Path(named).expanduser()
    folder = Path(os.environ.get("XDG_DATA_HOME", ""))
    # The XDG specification says to ignore relative values.
    base = (folder if folder.is_absolute() else Path("~/.local/share").expanduser()) / "holdfast"
    return base / homes.folder_name(project_of(Path.cwd()))


PROJECT_MARKS = ("holdfast.toml", "pyproject.toml", ".git")


def project_of(directory: Path) -> Path:
    """Return the project of a directory: the nearest one above it with a project mark, else the directory itself."""
    directory = directory.resolve()
    for one in (directory, *directory.parents):
        if any((one / mark).exists() for mark in PROJECT_MARKS):
            return one
    return directory


def start(home: Path, *, settings: Mapping[str, str] | None = None, start_seconds_max: float = 60) -> EmbeddedServer:
    """Return the running server of a home, started if needed.

    `settings` are PostgreSQL settings for a server that this call starts; a running one keeps its own. The server is
    durable unless they disable that.
    """
    began = time.monotonic()
    deadline = began + start_seconds_max
    settings = settings or {}
    cluster.check_settings(settings)
    account = accounts.choose(os.environ)
    place = homes.prepare(home, account)
    with ExitStack() as undo:
        try:
            share = Share(locks.take(place.users_lock, is_shared=True, deadline=deadline))
            undo.callback(share.close)
            how, record = _attach_or_launch(place, settings, account, deadline)
        except TimeoutError as error:
            raise _too_slow(place, start_seconds_max) from error
        except OSError as error:
            raise homes.unusable(place.root, f"{error.strerror}: {error.filename}") from error
        undo.pop_all()
    return EmbeddedServer(
        url=sockets.url(Path(record.socket_directory)),
        version=record.version,
        home=place.home,
        how=how,
        seconds=time.monotonic() - began,
        _share=share,
    )


def _attach_or_launch(
    place: HomePaths, settings: Mapping[str, str], account: Account | None, deadline: float
) -> tuple[str, StartRecord]:
    """Attach to a server that is ready, else wait until no process of one is left and start a new one."""
    while True:
        lock = locks.open_file(place.server_lock)
        try:
            if locks.try_take(lock, is_shared=False):
                return "started", launch(place, settings, account=account, lock=lock, deadline=deadline)
        finally:
            os.close(lock)
        record = read_record(place)
        if record is not None:
            data = Path(record.data)
            if not locks.is_taken(place.keeper_lock):
                postmaster.stop_orphan(data)
            elif _is_serving(data, Path(record.socket_directory)):
                return "attached", record
        locks.pause(deadline)


def _is_serving(data: Path, socket_directory: Path) -> bool:
    found = postmaster.read(data)
    return found is not None and found.is_ready and sockets.answers(socket_directory)


def _too_slow(place: HomePaths, seconds_max: float) -> Unavailable:
    tail = log_tail(place.log)
    return Unavailable(
        f"The embedded database in {place.root} was not ready in {seconds_max:g} s. Its log ends:\n{tail}\n",
        code="embedded_start_timeout",
        advice="If it is recovering from a crash, start again with more time.",
        log_tail=tail,
    )


def status(home: Path) -> ServerStatus:
    """Return the status of the server of a home; creates and changes nothing."""
    place = homes.locate(home)
    record = read_record(place)
    found = postmaster.read(Path(record.data)) if record else None
    is_running = found is not None and found.is_ready and locks.is_taken(place.server_lock)
    return ServerStatus(
        is_running=is_running,
        pid=found.pid if found and is_running else None,
        version=record.version if record else None,
        url=sockets.url(Path(record.socket_directory)) if record else None,
        data=Path(record.data) if record else None,
        settings=record.settings if record else {},
        log=place.log,
        log_tail=log_tail(place.log),
    )
