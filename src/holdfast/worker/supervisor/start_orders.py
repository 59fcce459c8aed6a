"""The orders that a supervisor gives to a worker process at its start, and the exit codes of that process.

Orders are sent through a pipe, not in arguments or the environment: a database URL may contain a password, and every
user of a machine can read arguments. The pipe stays open: when it closes, the process knows that the supervisor is
dead.
"""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import Any

import msgspec

from holdfast.settings.settings import Settings


class ExitCode(IntEnum):
    """Exit codes of a worker process; the numbers follow sysexits.h where it has one."""

    STOPPED = 0
    """The process was asked to stop and did."""
    OVERDUE = 70
    """An attempt did not end by its deadline or before its lease expired, so the process ended itself."""
    AWAY = 75
    """The database could not be reached, or no longer knows this worker: start another."""
    CANNOT_LOAD = 78
    """The app could not be imported, or the worker was refused; a restart will not help."""
    DRAINED = 79
    """The worker was drained and had nothing left to run: no other process replaces it."""


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker process needs to know at its start."""

    app_ref: str
    url: str
    settings: Settings
    slots: int
    queues: list[str] | None
    name: str
    packs: list[str] = []
    logs_failures: bool = True
    """Whether failed attempts are logged; false if another component shows them already."""


def encode(orders: Orders) -> bytes:
    """Encode the orders as one line."""
    return msgspec.json.encode(orders, enc_hook=_plain) + b"\n"


def decode(line: bytes) -> Orders:
    return msgspec.json.decode(line, type=Orders, dec_hook=_of_kind)


def _plain(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot travel in orders")


def _of_kind(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise TypeError(f"{kind.__name__} cannot travel in orders")
