"""File locks with a deadline.

They are the only shared state about a running server: the kernel drops a lock with its last holder, however that
process died, so no count can go wrong and nothing has to be repaired after a kill -9. A lock is never unlocked, only
closed: a forked process that still has it open keeps it.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

POLL_SECONDS = 0.01


def open_file(path: Path) -> int:
    """Open a lock file, creating it on first use; child programs do not inherit the descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def try_take(descriptor: int, *, is_shared: bool) -> bool:
    """Take the lock if it is free. Return whether it was taken."""
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
    """Return whether another process holds the lock exclusively; never creates the file."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not try_take(descriptor, is_shared=True)
    finally:
        os.close(descriptor)


def pause(deadline: float) -> None:
    """Sleep for one polling interval, or raise TimeoutError after the deadline."""
    if time.monotonic() >= deadline:
        raise TimeoutError
    time.sleep(POLL_SECONDS)
