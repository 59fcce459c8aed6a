"""The content of `postmaster.pid`, and whether to trust it.

PostgreSQL writes the file when it starts and removes it when it stops. A killed server leaves it behind, and its
process id may since belong to another process. So nothing is signalled, and no file removed, because of the file alone:
the command line of the process has to match.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Postmaster:
    """One server as its own file describes it; two servers never have the same description."""

    pid: int
    started_at: str
    memory: str
    state: str

    @property
    def is_ready(self) -> bool:
        return self.state == "ready" and is_alive(self.pid)


def read(data: Path) -> Postmaster | None:
    """Return the content of the file, or `None` while it is absent or half written."""
    try:
        lines = [line.strip() for line in (data / "postmaster.pid").read_text(errors="replace").splitlines()]
        # Line by line: pid, data directory, start time, port, socket directory, address, memory, state.
        return Postmaster(pid=int(lines[0]), started_at=lines[2], memory=lines[6], state=lines[7])
    except (OSError, ValueError, IndexError):
        return None


def is_alive(pid: int) -> bool:
    """Return whether a process with this id still runs; a zombie does not."""
    return _exists(pid) and not _is_zombie(pid)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_zombie(pid: int) -> bool:
    """Return whether a process has ended but was not reaped; in containers that can last forever."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False


def stop_orphan(data: Path) -> None:
    """Ask a server that lost its keeper to shut down, if the process in the file really is that server.

    Linux stops it automatically (see `keeper`); on other systems it runs until another process calls this.
    """
    found = read(data)
    if found is not None and _data_of(found.pid) == str(data):
        os.kill(found.pid, signal.SIGINT)


def clear_stale_file(data: Path) -> None:
    """Remove the file of a dead server whose process id is still, or again, in use.

    PostgreSQL ignores a file whose process has ended, but refuses to start while the id is in use. Call this only under
    the server lock, which proves that none of our servers is left. A foreign server on these data is recognized by its
    command line; in doubt the file stays.
    """
    found = read(data)
    if found is None or not _exists(found.pid):
        return
    command = _command(found.pid)
    is_other_program = bool(command) and "postgres" not in command[0]
    other_data = _data_of(found.pid)
    is_other_server = other_data is not None and not _is_same(Path(other_data), data)
    if is_other_program or is_other_server or _is_zombie(found.pid):
        (data / "postmaster.pid").unlink(missing_ok=True)


def _data_of(pid: int) -> str | None:
    """Return the absolute data directory a server was started with, from its command line."""
    command = _command(pid)
    for flag, value in itertools.pairwise(command):
        if flag == "-D" and value.startswith("/"):
            return value
    return None


def _command(pid: int) -> list[str]:
    """Return the words of a process's command line; empty if they are unknown."""
    if sys.platform == "linux":
        try:
            raw = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return []
        return [os.fsdecode(word) for word in raw.split(b"\0") if word]
    listed = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return listed.stdout.split()


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
