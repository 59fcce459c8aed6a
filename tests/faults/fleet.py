"""Real worker processes to kill, freeze and continue: parents with their children, as `holdfast work` starts them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.victim_app import LOG_VARIABLE

LEASE_SECONDS = 1.5
SETTINGS = {
    "HOLDFAST_UNSAFE": "1",
    "HOLDFAST_LEASE_SECONDS": str(LEASE_SECONDS),
    "HOLDFAST_HEARTBEAT_SECONDS": "0.4",
    "HOLDFAST_POLL_SECONDS": "0.2",
    "HOLDFAST_REAP_SECONDS": "0.2",
    "HOLDFAST_RECONCILE_SECONDS": "0.1",
    "HOLDFAST_SHUTDOWN_SECONDS": "2",
}


@dataclass(slots=True)
class Fleet:
    """A number of parents on one database, restarted when they are killed."""

    url: str
    log: Path
    processes: int = 1
    slots: int = 20
    settings: dict[str, str] = field(default_factory=dict)
    """What differs from `SETTINGS`."""
    options: tuple[str, ...] = ()
    """More options of `holdfast work`."""
    parents: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        parent = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "holdfast.cli.main",
                "work",
                "tests.faults.victim_app:app",
                "--processes",
                str(self.processes),
                "--slots",
                str(self.slots),
                *self.options,
            ],
            env=environment | SETTINGS | self.settings | {"HOLDFAST_URL": self.url, LOG_VARIABLE: str(self.log)},
            stdout=subprocess.DEVNULL,
            stderr=self._errors(),
            start_new_session=True,
        )
        self.parents.append(parent)
        return parent

    def _errors(self) -> int:
        return os.open(self.log.with_suffix(".err"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def children(self) -> list[int]:
        """The worker processes of all parents that live."""
        found = []
        for parent in self.parents:
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{parent.pid}/task").iterdir():
                    found += [int(pid) for pid in (task / "children").read_text().split()]
        return found

    def kill_a_child(self, chance: random.Random) -> bool:
        return self.signal_a_child(chance, signal.SIGKILL) is not None

    def signal_a_child(self, chance: random.Random, which: signal.Signals) -> int | None:
        if not (children := self.children()):
            return None
        victim = chance.choice(children)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, which)
            return victim
        return None

    def kill_a_parent(self, chance: random.Random) -> None:
        """Its children find themselves orphaned; another parent takes its place."""
        victim = chance.choice(self.parents)
        victim.kill()
        victim.wait()
        self.parents.remove(victim)
        self.start()

    def stop(self) -> None:
        for parent in self.parents:
            parent.send_signal(signal.SIGTERM)
        for parent in self.parents:
            try:
                parent.wait(timeout=20)
            except subprocess.TimeoutExpired:
                parent.kill()
                parent.wait()
        self.parents.clear()
