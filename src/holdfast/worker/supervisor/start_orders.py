"""What a parent tells a worker process at its start, and the words in which the process says why it ended.

Orders travel through a pipe, not through arguments or the environment: a database URL may hold a password, and every
user of a machine can read arguments. The pipe stays open: its end tells the process that the parent is gone.
"""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import Any

import msgspec

from holdfast.settings.settings import Settings


class ExitCode(IntEnum):
    """Exit codes of a worker process; the numbers are those of sysexits.h where it has one."""

    STOPPED = 0
    """It was asked to stop and did."""
    OVERDUE = 70
    """An attempt would not end by its deadline or before its lease; the process went instead."""
    AWAY = 75
    """The database could not be reached, or no longer knows this worker: start another."""
    CANNOT_LOAD = 78
    """The app could not be imported, or the worker was refused; starting it again will not help."""
    DRAINED = 79
    """It was drained and held nothing any more: nobody takes its place."""


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker process needs to know."""

    app_ref: str
    url: str
    settings: Settings
    slots: int
    queues: list[str] | None
    name: str
    packs: list[str] = []
    tells_failures: bool = True
    """Whether failed attempts are logged; something else may show them already."""


def encode(orders: Orders) -> bytes:
    """One line."""
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
