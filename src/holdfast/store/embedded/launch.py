"""Start a server, in the one process that has its lock, and record what was started."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast.errors import Unavailable
from holdfast.store.embedded import account as accounts
from holdfast.store.embedded import binaries, cluster, keeper, postmaster, sockets
from holdfast.store.embedded.account import Account
from holdfast.store.embedded.home import HomePaths, write_atomically
from holdfast.store.embedded.locks import POLL_SECONDS

LOG_BYTES_MAX = 10_000_000
TAIL_BYTES = 16_384
TAIL_LINES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRecord:
    """The server last started in a home. `root` reveals a record that was copied with its home."""

    root: str
    version: str
    data: str
    socket_directory: str
    settings: Mapping[str, str]


def read_record(place: HomePaths) -> StartRecord | None:
    """Return what was started here last, or `None`."""
    try:
        record = StartRecord(**json.loads(place.record.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return record if record.root == str(place.root) else None


def launch(
    place: HomePaths, settings: Mapping[str, str], *, account: Account | None, lock: int, deadline: float
) -> StartRecord:
    """Start the server of a home and return when it accepts connections.

    `lock` is the server lock, already taken: from here on every process of the new server holds it.
    """
    tools = _choose_tools(place)
    data = place.data(tools.major)
    if data.exists():
        account = accounts.owner_of(data)
    tools = binaries.within_reach(tools, account)
    if not data.exists():
        is_durable = settings.get("fsync", "on") != "off"
        cluster.create_data(data, tools, account, lock=lock, is_durable=is_durable, deadline=deadline)
    former = read_record(place)
    folder = sockets.prepare(place.root, Path(former.socket_directory) if former else None, account)
    record = StartRecord(
        root=str(place.root),
        version=tools.version,
        data=str(data),
        socket_directory=str(folder),
        settings=dict(settings),
    )
    write_atomically(place.record, json.dumps(asdict(record)))
    postmaster.clear_stale_file(data)
    before = postmaster.read(data)
    log_bytes = _trim_log(place.log)
    alive = _start_keeper(place, cluster.command(tools, data, folder, settings), account, lock)
    try:
        while (now := postmaster.read(data)) is None or now == before or not now.is_ready:
            if select.select([alive], [], [], POLL_SECONDS)[0]:  # end of file: the keeper has ended
                raise _failed(place, log_bytes)
            if time.monotonic() >= deadline:
                raise TimeoutError
    finally:
        os.close(alive)
    return record


def _choose_tools(place: HomePaths) -> binaries.Binaries:
    """Find programs for the existing data, else the best ones."""
    major = place.major()
    if major is None:
        return binaries.find(os.environ)
    try:
        return binaries.find(os.environ, major=major)
    except Unavailable as missing:
        raise Unavailable(
            f"The data in {place.data(major)} need PostgreSQL {major}. {missing.detail}",
            code="embedded_version_mismatch",
            advice=f"Install PostgreSQL {major} and set HOLDFAST_PG_BIN to its bin folder; "
            "or start a new home with HOLDFAST_HOME and carry the data over with pg_dump.",
        ) from missing


def _start_keeper(place: HomePaths, command: list[str], account: Account | None, lock: int) -> int:
    """Start the keeper and return a descriptor that reads end-of-file once the keeper has ended."""
    alive, held_by_keeper = os.pipe()
    order = keeper.describe(
        command=command,
        users_lock=place.users_lock,
        keeper_lock=place.keeper_lock,
        server_lock=lock,
        uid=account.uid if account else None,
        gid=account.gid if account else None,
    )
    try:
        private_log = os.open(place.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(private_log, "ab") as log:
            # Isolated and without site packages: the keeper needs neither and starts faster.
            subprocess.run(
                [sys.executable, "-I", "-S", keeper.__file__, order],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=accounts.plain_environment(),
                cwd="/",
                start_new_session=True,
                pass_fds=[lock, held_by_keeper],
                check=False,
            )
    except BaseException:
        os.close(alive)
        raise
    finally:
        os.close(held_by_keeper)
    return alive


def _trim_log(log: Path) -> int:
    """Move a large log aside, and return the size of the current one."""
    if not log.exists():
        return 0
    size_bytes = log.stat().st_size
    if size_bytes <= LOG_BYTES_MAX:
        return size_bytes
    log.replace(log.with_name(f"{log.name}.old"))
    return 0


def log_tail(log: Path, *, from_byte: int = 0) -> str:
    """Return the last lines of PostgreSQL's log, none of them from before `from_byte`."""
    try:
        with log.open("rb") as file:
            file.seek(max(from_byte, log.stat().st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-TAIL_LINES:])


def _failed(place: HomePaths, log_bytes: int) -> Unavailable:
    tail = log_tail(place.log, from_byte=log_bytes)
    return Unavailable(
        f"PostgreSQL ended while starting in {place.root}:\n{tail or '(it said nothing)'}\n",
        code="embedded_start_failed",
        advice=f"Fix what it names and start again; the whole log is {place.log}.",
        log_tail=tail,
    )
