"""The keeper: a detached process that owns one PostgreSQL server and ends with it.

It waits for the lock that every user of the server shares. When it gets the lock, the last user has ended, in whatever
way, and the keeper shuts the server down. It outlives the process that started it: it has its own session, no terminal,
and ignores Ctrl-C and hang-up. SIGTERM, as at a system shutdown, stops the server cleanly. If the keeper itself is
killed, Linux signals the server to shut down (on other systems the next start does).

It runs as a single file with the standard library only, so that it is small and starts quickly: `python -m
holdfast.store.embedded.keeper ORDER`, where ORDER is the JSON made by `describe`.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

PR_SET_PDEATHSIG = 1
REMIND_SECONDS = 1.0


def describe(
    *,
    command: Sequence[str],
    users_lock: Path,
    keeper_lock: Path,
    server_lock: int,
    uid: int | None,
    gid: int | None,
) -> str:
    """Encode a keeper's order; `server_lock` is an inherited descriptor that is already locked."""
    return json.dumps(
        {
            "command": list(command),
            "users_lock": str(users_lock),
            "keeper_lock": str(keeper_lock),
            "server_lock": server_lock,
            "uid": uid,
            "gid": gid,
        }
    )


def main(order_text: str) -> NoReturn:
    """Detach, start the server, and wait until it has ended."""
    if os.fork():
        os._exit(0)  # the process that started us reaps this parent; the keeper goes on detached
    for terminal_signal in (signal.SIGINT, signal.SIGHUP):
        # A handler, not SIG_IGN: PostgreSQL would inherit that, and ignore signals until it sets its own handlers.
        signal.signal(terminal_signal, lambda *_: None)
    order = json.loads(order_text)
    keeper_lock = os.open(order["keeper_lock"], os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(keeper_lock, fcntl.LOCK_EX)
    server = subprocess.Popen(
        order["command"],
        preexec_fn=_dying_with(os.getpid()),  # runs after the change of user, which would undo it
        user=order["uid"],
        group=order["gid"],
        extra_groups=None if order["uid"] is None else [],
        pass_fds=[order["server_lock"]],  # the lock stays taken until the last process of the server has ended
    )
    signal.signal(signal.SIGTERM, lambda *_: server.send_signal(signal.SIGINT))
    threading.Thread(target=_stop_when_unused, args=(server, order["users_lock"]), daemon=True).start()
    os._exit(server.wait() & 0xFF)


def _dying_with(keeper: int) -> Callable[[], None]:
    """Return the function that ties the server process to the keeper's life before it executes PostgreSQL."""
    if sys.platform != "linux":
        return lambda: None
    libc = ctypes.CDLL(None)

    def tie() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGINT)
        if os.getppid() != keeper:  # the keeper died before the call above took effect
            os._exit(1)

    return tie


def _stop_when_unused(server: subprocess.Popen[bytes], users_lock: str) -> None:
    """Shut the server down when it has no users; new users wait for the lock until it is down."""
    fcntl.flock(os.open(users_lock, os.O_RDWR), fcntl.LOCK_EX)
    while True:
        server.send_signal(signal.SIGINT)  # fast shutdown
        threading.Event().wait(REMIND_SECONDS)  # repeat, in case it had no signal handler yet


if __name__ == "__main__":
    main(sys.argv[1])
