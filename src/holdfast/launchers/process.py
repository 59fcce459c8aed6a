"""Process launcher: a child process on this machine in its own session, which outlives its launcher.

The child receives its database and its attempt through the environment, never through arguments, which every user of a
machine can read. A handle contains the machine and the start time of the process, so that a reused process id is not
mistaken for it.
"""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast._internal.process_tree import kill_session
from holdfast.launchers.contract import (
    APP_VARIABLE,
    URL_VARIABLE,
    LaunchError,
    LaunchOrder,
    LaunchState,
    LaunchStatus,
    NotHere,
    Options,
)

OPTIONS = ("app", "command", "env", "directory", "stop_seconds")
STOP_SECONDS = 5
STEP_SECONDS = 0.05
_FORGET = ("HOLDFAST_LAUNCH_TOKEN", "HOLDFAST_TASK_ID", "HOLDFAST_ATTEMPT")


class ProcessLauncher:
    """Launches processes; `command` is `holdfast attach` unless the profile sets another."""

    kind = "process"

    def __init__(
        self, profile: str, values: Mapping[str, Any], *, url: str, app_ref: str, packs: Sequence[str]
    ) -> None:
        options = Options(profile, values, OPTIONS)
        pack_options = [word for folder in packs for word in ("--pack", folder)]
        self._command = options.texts("command") or (sys.executable, "-m", "holdfast", "attach", *pack_options)
        self._environment = options.environment()
        if app := options.text("app", app_ref):
            self._environment[APP_VARIABLE] = app
        self._environment.setdefault(URL_VARIABLE, url)
        self._directory = options.text("directory") or None
        self._stop_seconds = options.number("stop_seconds", STOP_SECONDS)
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    async def launch(self, order: LaunchOrder) -> str:
        self._remove_exited_children()
        child = self._children.get(order.name)
        if child is None:
            inherited = {name: value for name, value in os.environ.items() if name not in _FORGET}
            try:
                child = subprocess.Popen(  # noqa: ASYNC220 - returns once the program is loaded
                    self._command,
                    stdin=subprocess.DEVNULL,
                    env={**inherited, **self._environment, **order.environment},
                    cwd=self._directory,
                    start_new_session=True,
                )
            except OSError as error:
                raise LaunchError(f"{self._command[0]} could not be started: {error}.") from error
            self._children[order.name] = child
        return _handle(child.pid)

    async def describe(self, handles: Sequence[str]) -> Mapping[str, LaunchStatus]:
        codes = {_handle(child.pid): child.poll() for child in self._children.values()}
        self._remove_exited_children()
        return {handle: self._status(handle, codes.get(handle)) for handle in handles}

    def _status(self, handle: str, code: int | None) -> LaunchStatus:
        pid = _pid_here(handle)
        if pid is None:
            return LaunchStatus(state=LaunchState.UNKNOWN, detail="it was launched on another machine")
        if code is None and _handle(pid) == handle:
            return LaunchStatus(state=LaunchState.RUNNING)
        detail = "the process is gone" if code is None else f"the process ended with exit code {code}"
        return LaunchStatus(state=LaunchState.STOPPED, detail=detail)

    async def stop(self, name: str, handle: str | None) -> None:
        child = self._children.get(name)
        if handle is None and child is not None:
            handle = _handle(child.pid)
        if handle is not None and (node := handle.split("/")[0]) != platform.node():
            raise NotHere(f"It was launched on {node}; only a server on that machine can stop it.")
        pid = None if handle is None else _pid_here(handle)
        if handle is None or pid is None or _handle(pid) != handle:
            self._remove_exited_children()
            return
        await _end(pid, handle, self._stop_seconds)
        while not kill_session(pid):  # noqa: ASYNC110 - only polling the kernel shows that they ended
            await asyncio.sleep(STEP_SECONDS)
        self._remove_exited_children()

    def _remove_exited_children(self) -> None:
        """Collect exited children and remove them."""
        self._children = {name: child for name, child in self._children.items() if child.poll() is None}


async def _end(pid: int, handle: str, seconds: float) -> None:
    """Send SIGTERM to a process, and SIGKILL if it does not end."""
    try:
        os.kill(pid, signal.SIGTERM)
        for _ in range(max(1, round(seconds / STEP_SECONDS))):
            if _handle(pid) != handle:
                return
            await asyncio.sleep(STEP_SECONDS)
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _handle(pid: int) -> str:
    return f"{platform.node()}/{_boot()}/{pid}/{_started(pid)}"


def _pid_here(handle: str) -> int | None:
    """Return the process id of a handle, if it is from this machine and this boot."""
    node, boot, pid, _ = handle.split("/")
    return int(pid) if (node, boot) == (platform.node(), _boot()) else None


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return the start time of a process in ticks; empty if it does not exist or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
