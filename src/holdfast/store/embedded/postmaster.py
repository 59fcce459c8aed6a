"""What `postmaster.pid` says about a server, and whether to believe it.

PostgreSQL writes the file when it starts and removes it when it stops; a killed server leaves it behind, and
the process id in it may since belong to anyone. So nothing is signalled, and no file removed, on its word
alone: the command line of the process has to agree.
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
    """One server as its own file describes it; two servers never describe themselves alike."""

    pid: int
    started_at: str
    memory: str
    state: str

    @property
    def is_ready(self) -> bool:
        return self.state == "ready" and is_alive(self.pid)


def read(data: Path) -> Postmaster | None:
    """Return what the file says, or `None` while it is absent or half written."""
    try:
        lines = [line.strip() for line in (data / "postmaster.pid").read_text(errors="replace").splitlines()]
        # Line by line: pid, data directory, start time, port, socket directory, address, memory, state.
        return Postmaster(pid=int(lines[0]), started_at=lines[2], memory=lines[6], state=lines[7])
    except (OSError, ValueError, IndexError):
        return None


def is_alive(pid: int) -> bool:
    """Tell whether a process with this id still runs; one that ended and was not collected does not."""
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
    """Tell whether a process ended but its parent has not asked; in containers that can last for ever."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False


def stop_orphan(data: Path) -> None:
    """Ask a server that lost its keeper to shut down, if the one in the file really is it.

    Linux stops it by itself (see `keeper`); other systems leave it running until somebody comes by.
    """
    found = read(data)
    if found is not None and _data_of(found.pid) == str(data):
        os.kill(found.pid, signal.SIGINT)


def clear_stale_file(data: Path) -> None:
    """Remove the file of a dead server whose process id is still, or again, in use.

    PostgreSQL itself forgives a file whose process is gone, but refuses to start while the id is taken.
    Called only under the server lock, which proves that no server of ours is left; a server somebody else
    runs on these data is recognised by its command line, and in doubt the file stays.
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
    """Return the absolute data directory a server was started with, as its command line has it."""
    command = _command(pid)
    for flag, value in itertools.pairwise(command):
        if flag == "-D" and value.startswith("/"):
            return value
    return None


def _command(pid: int) -> list[str]:
    """Return the words of a process's command line; empty if they cannot be known."""
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
