"""Run a program that does not watch our stdin: `python guard.py LOG PROGRAM …`. When stdin closes, it is killed.

Workers of other engines and the private Redis would otherwise survive a killed benchmark. Signals to the benchmark do
not end the guard before its work is done.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with Path(sys.argv[1]).open("ab") as log:
        child = subprocess.Popen(
            sys.argv[2:],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            restore_signals=True,
            preexec_fn=_hear_signals,
        )
    threading.Thread(target=_end_with_us, args=(child.pid,), daemon=True).start()
    code = child.wait()
    kill_session(child.pid)
    return code


def _hear_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _end_with_us(leader: int) -> None:
    sys.stdin.buffer.read()
    kill_session(leader)


def kill_session(leader: int) -> None:
    """Kill a program and everything it started, even in another process group."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) == leader:
                os.kill(int(folder.name), signal.SIGKILL)
        except OSError:
            continue
    try:
        os.killpg(leader, signal.SIGKILL)
    except OSError:
        return


if __name__ == "__main__":
    sys.exit(main())
