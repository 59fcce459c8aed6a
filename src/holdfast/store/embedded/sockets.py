"""The folder of the server's socket, and the URL that leads there.

The server trusts every client that reaches its socket, so the folder is the only protection: it is closed (0700) to all
but the account that runs the server, and root.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import struct
import tempfile
from pathlib import Path
from urllib.parse import quote

from holdfast.store.embedded import account as accounts
from holdfast.store.embedded.account import Account

DATABASE = "holdfast"
PORT = 5432  # only a part of the socket's name: the folder is private, so it never clashes
ANSWER_SECONDS_MAX = 1.0
ENCRYPTION_QUESTION = struct.pack("!II", 8, 80877103)
PATH_BYTES_MAX = 100  # the kernel's own limit is 103 or 107, by system


def prepare(root: Path, recorded: Path | None, account: Account | None) -> Path:
    """Return an empty folder for the socket that only the server's account, and root, may enter.

    It is the same at every start, so that clients find a restarted server again. Clients cannot name a socket with a
    long path or a comma in it; then the folder is a temporary one, stored as `recorded`.
    """
    preferred = root / "run"
    if _is_speakable(preferred):
        shutil.rmtree(preferred, ignore_errors=True)
        preferred.mkdir(mode=0o700)
        accounts.give(preferred, account)
        return preferred
    if recorded is not None and _is_private(recorded, account):
        for leftover in recorded.iterdir():
            leftover.unlink()
        return recorded
    made = Path(tempfile.mkdtemp(prefix="holdfast-", dir="/tmp"))
    accounts.give(made, account)
    return made


def _is_speakable(directory: Path) -> bool:
    text = str(directory / f".s.PGSQL.{PORT}")
    return len(os.fsencode(text)) <= PATH_BYTES_MAX and "," not in text and text.isprintable()


def _is_private(directory: Path, account: Account | None) -> bool:
    """Return whether a folder is still ours: after a reboot another user may have taken its name."""
    try:
        found = directory.lstat()
    except OSError:
        return False
    owner = account.uid if account else os.geteuid()
    return stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700 and found.st_uid == owner


def answers(directory: Path) -> bool:
    """Return whether the server behind a socket responds: one that is being killed still exists for a while.

    Sends the encryption request, the shortest message of the protocol; any response will do.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_SECONDS_MAX)
        try:
            connection.connect(str(directory / f".s.PGSQL.{PORT}"))
            connection.sendall(ENCRYPTION_QUESTION)
            return len(connection.recv(1)) == 1
        except OSError:
            return False


def url(socket_directory: Path) -> str:
    """Return the URL of the `holdfast` database behind a socket."""
    return f"postgresql://postgres@/{DATABASE}?host={quote(str(socket_directory))}&port={PORT}"
