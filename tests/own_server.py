"""A PostgreSQL of a test's own, durable, that may be stopped without mercy."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.waiting import poll

from holdfast.store.embedded import postmaster
from holdfast.store.embedded.server import start, status

SETTINGS = {"shared_buffers": "32MB"}


class OwnServer:
    """It runs from the beginning; whoever makes it closes it."""

    def __init__(self, home: Path, **settings: str) -> None:
        self._home = home
        self._settings = SETTINGS | settings
        self._server = start(home, settings=self._settings)
        self.url = self._server.url

    def crash(self) -> None:
        """What `pg_ctl stop -m immediate` does; returns when it is down."""
        pid = status(self._home).pid
        assert pid is not None
        os.kill(pid, signal.SIGQUIT)
        poll(lambda: not postmaster.is_alive(pid))

    def recover(self) -> None:
        earlier, self._server = self._server, start(self._home, settings=self._settings)
        earlier.close()

    def close(self) -> None:
        self._server.close()
