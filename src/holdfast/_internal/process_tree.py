"""The processes a dead worker left behind: found by their session, killed, and waited for.

A worker process leads a session of its own, and what its actions start belongs to that session unless it leaves it on
purpose, as daemons do. Only when none of them runs any more may the worker's tasks be given to somebody else.
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
    """Kill whatever still runs in a session; true once nothing does."""
    left = _members(session_id)
    for pid in left:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return not left


def lead_group() -> None:
    """Lead a group of our own, so that one signal reaches everything started here."""
    os.setpgid(0, 0)
    _led.add(os.getpid())


def leads_group() -> bool:
    """Whether this process leads a group in which there is nothing but what it started itself.

    Its group id does not tell: whatever a shell starts leads a group too, with the rest of its pipeline in it.
    """
    return os.getpid() in _led


def kill_group(group_id: int, *, but: int) -> None:
    """Kill whatever a process left behind in its own group, and not that process."""
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
        # "pid (command) state parent group session …"; the command may hold anything, also parentheses.
        state, _, group, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
    except (OSError, ValueError):
        return False
    return state not in _DEAD_STATES and is_wanted(int(group), int(session))
