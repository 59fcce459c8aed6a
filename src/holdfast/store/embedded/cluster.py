"""A data directory, and the command line of the server on it.

Data appear whole: they are created, given the `holdfast` database and synced in a draft folder, which is then renamed.
A process that is killed meanwhile leaves a draft that the next start deletes. Every server is durable and listens on a
private socket only; no setting can open a network port.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import InvalidSettings, Unavailable
from holdfast.store.embedded import account as accounts
from holdfast.store.embedded.account import Account
from holdfast.store.embedded.binaries import Binaries
from holdfast.store.embedded.sockets import DATABASE, PORT

DEFAULTS: Mapping[str, str] = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "autovacuum": "on",
    "jit": "off",
    "log_min_messages": "warning",
    "logging_collector": "off",
    "holdfast.embedded": "on",
}
OURS = frozenset({"listen_addresses", "port", "unix_socket_directories", "data_directory", "config_file", "hba_file"})


def check_settings(settings: Mapping[str, str]) -> None:
    """Raise `InvalidSettings` for settings that would move the server from its private socket or directory."""
    if refused := sorted(OURS & {name.lower() for name in settings}):
        raise InvalidSettings(
            f"The embedded database sets {', '.join(refused)} itself.",
            code="embedded_setting_refused",
            advice="Leave it out; for a server on the network set HOLDFAST_URL to one of your own.",
        )


def create_data(
    data: Path, tools: Binaries, account: Account | None, *, lock: int, is_durable: bool, deadline: float
) -> None:
    """Create a data directory with an empty `holdfast` database; it appears complete or not at all."""
    draft = data.with_name(f"{data.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    accounts.give(draft, account)

    def run(program: str, *flags: str, stdin: str = "") -> None:
        command = [str(tools.directory / program), *flags]
        seconds_max = max(0.1, deadline - time.monotonic())
        try:
            done = accounts.run(command, account=account, seconds_max=seconds_max, stdin=stdin, keep_open=[lock])
        except subprocess.TimeoutExpired as expired:
            raise TimeoutError from expired
        if done.returncode != 0:
            raise Unavailable(
                f"{program} could not make the data directory {data}:\n{done.stdout.strip()}",
                code="embedded_data_not_made",
                advice="Free some space or fix what it names, then start again.",
            )

    common = ["-D", str(draft)]
    run("initdb", *common, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--data-checksums",
        "--no-sync", "--no-instructions")  # fmt: skip
    run("postgres", "--single", "-F", "-c", "exit_on_error=on", *common, "postgres",
        stdin=f"create database {DATABASE}\n")  # fmt: skip
    if is_durable:  # one sync at the end costs a fraction of one per step
        run("initdb", "--sync-only", *common)
    draft.rename(data)
    _sync_directory(data.parent)


def command(tools: Binaries, data: Path, socket_directory: Path, settings: Mapping[str, str]) -> list[str]:
    """Return the command line of a server."""
    quoted = str(socket_directory).replace('"', '""')
    private = {"listen_addresses": "", "port": str(PORT), "unix_socket_directories": f'"{quoted}"'}
    chosen = {**DEFAULTS, **_compression(tools, data), **settings, **private}
    flags = [word for name, value in chosen.items() for word in ("-c", f"{name}={value}")]
    return [str(tools.directory / "postgres"), "-D", str(data), *flags]


def _compression(tools: Binaries, data: Path) -> dict[str, str]:
    """Compress the WAL if the build has lz4; pglz would cost more time than it saves."""
    wanted = "wal_compression=lz4"
    probe = [str(tools.directory / "postgres"), "-C", "wal_compression", "-c", wanted, "-D", str(data)]
    is_supported = accounts.run(probe, account=None, seconds_max=10).returncode == 0
    return dict([wanted.split("=")]) if is_supported else {}


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
