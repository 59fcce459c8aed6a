"""The HTTP API beside `holdfast dev`: whatever keeps it from starting is said, and nobody waits for it."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from holdfast.cli.server_thread import ServerThread
from holdfast.errors import Unavailable
from holdfast.settings.settings import Settings


class Broken(ServerThread):
    async def _serve(self) -> None:
        raise OSError(24, "Too many open files")


def test_what_is_no_error_of_ours_is_told_too():
    server, told = Broken("postgresql://127.0.0.1:1/nowhere", Settings()), Future()

    def start():
        try:
            told.set_result(server.start())
        except Unavailable as error:
            told.set_exception(error)

    threading.Thread(target=start, daemon=True).start()
    with pytest.raises(Unavailable, match="Too many open files"):
        told.result(timeout=20)
    server.close()
