"""The processes a dead worker left behind: found by their session, killed, and waited for.

A worker process leads a session of its own, and what its actions start belongs to that session unless it leaves it on
purpose, as daemons do. Only when none of them runs any more may the worker's tasks be given to somebody else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

_DEAD_STATES = ("Z", "X")


def kill_session(session_id: int) -> bool:
    """Kill whatever still runs in a session; true once nothing does."""
    left = _members(session_id)
    for pid in left:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return not left


def _members(session_id: int) -> list[int]:
    if sys.platform != "linux":
        return []
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _is_in(entry, session_id)]


def _is_in(entry: Path, session_id: int) -> bool:
    try:
        # "pid (command) state parent group session …"; the command may hold anything, also parentheses.
        state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
    except (OSError, ValueError):
        return False
    return session == str(session_id) and state not in _DEAD_STATES
