"""Cleanup of the processes that a dead worker left behind: find them by their session, and kill them.

A worker process leads its own session, and processes that its actions start belong to that session unless they leave it
on purpose, as daemons do. The worker's tasks may be given to another worker only when none of them runs any more.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

_DEAD_STATES = ("Z", "X")
_led: set[int] = set()


def kill_session(session_id: int) -> bool:
    """Kill all processes of a session; return True once none is left."""
    left = _members(session_id)
    for pid in left:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return not left


def lead_group() -> None:
    """Make this process lead its own group, so that one signal reaches everything that it starts."""
    os.setpgid(0, 0)
    _led.add(os.getpid())


def leads_group() -> bool:
    """Return whether this process leads a group that contains only processes it started.

    The group id does not show this: a process started by a shell leads a group too, with the rest of its pipeline in
    it.
    """
    return os.getpid() in _led


def kill_group(group_id: int, *, but: int) -> None:
    """Kill all processes that a process left behind in its own group, except that process."""
    for pid in _living(lambda group, _session: group == group_id):
        if pid != but:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _members(session_id: int) -> list[int]:
    return _living(lambda _group, session: session == session_id)


def _living(is_wanted: Callable[[int, int], bool]) -> list[int]:
    if sys.platform != "linux":
        return []
    return [
        int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _is_alive(entry, is_wanted)
    ]


def _is_alive(entry: Path, is_wanted: Callable[[int, int], bool]) -> bool:
    try:
        # "pid (command) state parent group session …"; the command may contain anything, also parentheses.
        state, _, group, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
    except (OSError, ValueError):
        return False
    return state not in _DEAD_STATES and is_wanted(int(group), int(session))
