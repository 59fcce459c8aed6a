"""File locks that wait no longer than told.

All shared knowledge about a running server rests on these: the kernel drops a lock with its last holder,
however that one died, so no count can go wrong and nothing has to be repaired after a kill -9.
A lock is never unlocked, only closed: a forked process that still has it open keeps it.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

POLL_SECONDS = 0.01


def open_file(path: Path) -> int:
    """Open a lock file, made on first use; programs that this process starts do not get the descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def try_take(descriptor: int, *, is_shared: bool) -> bool:
    """Take the lock if that is possible at once."""
    kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def take(path: Path, *, is_shared: bool, deadline: float) -> int:
    """Return a descriptor that holds the lock, or raise TimeoutError at the deadline (monotonic seconds)."""
    descriptor = open_file(path)
    try:
        while not try_take(descriptor, is_shared=is_shared):
            pause(deadline)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_taken(path: Path) -> bool:
    """Tell whether somebody holds the lock alone just now; never makes the file."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not try_take(descriptor, is_shared=True)
    finally:
        os.close(descriptor)


def pause(deadline: float) -> None:
    """Let one polling interval pass, or raise TimeoutError if the deadline has."""
    if time.monotonic() >= deadline:
        raise TimeoutError
    time.sleep(POLL_SECONDS)
