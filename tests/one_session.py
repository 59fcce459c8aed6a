"""No task of the engine holds one session of a pool and asks that pool for another: checked in every test.

As many such tasks as the pool has sessions would wait for each other. A session that the test itself opened does not
count: only the code under test is bound by the rule.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from holdfast.store import pool
from holdfast.store.pool import Pool

_ENGINE = str(Path(pool.__file__).parents[1])
_STORE = str(Path(pool.__file__).parent)
_TESTING = str(Path(_ENGINE) / "testing")

_holders: WeakKeyDictionary[Pool, dict[Any, Any]] = WeakKeyDictionary()
"""For each pool the connections that are in use, and the task that acquired each; None for a test's own."""
violations: list[str] = []
"""Where a second session was asked for, since the last test ended."""


def watch_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every pool note who uses its connections."""
    acquire, take, release = Pool.acquire, Pool.take, Pool.release

    async def acquire_alone(self: Pool, *, seconds_max: float) -> Any:
        connection = await acquire(self, seconds_max=seconds_max)
        _note(self, connection)
        return connection

    def take_alone(self: Pool) -> Any:
        """Whoever acquires a connection looks here first."""
        _require_none(self)
        connection = take(self)
        if connection is not None:
            _note(self, connection)
        return connection

    def release_noted(self: Pool, connection: Any) -> None:
        _holders.get(self, {}).pop(connection, None)
        release(self, connection)

    monkeypatch.setattr(Pool, "acquire", acquire_alone)
    monkeypatch.setattr(Pool, "take", take_alone)
    monkeypatch.setattr(Pool, "release", release_noted)


def _require_none(asked: Pool) -> None:
    task = _task()
    if task is not None and any(holder is task for holder in _holders.get(asked, {}).values()):
        where = "".join(traceback.format_stack(sys._getframe(2), limit=8))
        violations.append(f"a task that holds a pooled session asks for another one:\n{where}")


def _note(used: Pool, connection: Any) -> None:
    _holders.setdefault(used, {})[connection] = _task() if _is_for_engine() else None


def _task() -> Any:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _is_for_engine() -> bool:
    """Whether the code that asked the store for a session is the engine's."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name == __file__:
            pass
        elif name.startswith(_TESTING) or "/tests/" in name:
            return False
        elif name.startswith(_ENGINE) and not name.startswith(_STORE):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return True
