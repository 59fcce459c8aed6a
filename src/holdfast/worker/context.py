"""What user code sees of its attempt: who it is, whether to stop, and a way to say how far it got."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True)
class Context:
    """Given to an action whose first parameter is a `Context`. Safe to use from the action's own thread."""

    task_id: str
    attempt: int
    tenant: str
    action: str
    queue: str
    tags: tuple[str, ...] = ()
    run_id: str | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _note: Callable[[str, dict[str, Any]], None] = lambda _kind, _detail: None

    @property
    def is_canceled(self) -> bool:
        """True once somebody asked this attempt to stop, its deadline passed, or its lease was lost."""
        return self._stop.is_set()

    def log(self, message: str, **fields: Any) -> None:
        """Record a line that `holdfast task logs` shows."""
        self._note("log", {"message": str(message)[:8192], **fields})

    def progress(self, done: float, total: float = 1.0, message: str = "") -> None:
        """Say how far the attempt got."""
        self._note("progress", {"done": float(done), "total": float(total), "message": str(message)[:512]})
