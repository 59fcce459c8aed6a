"""What user code sees of its attempt: who it is, whether to stop, and ways to act under its lease."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


class Governed(Protocol):
    """What carries out effects, steps and beats of a running attempt."""

    def effect(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        key: str | None,
        compensate: Any,
    ) -> Any: ...

    def step(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any: ...

    def heartbeat(self) -> Any: ...

    def ask(self, request: Any) -> Any: ...


@dataclass(slots=True, kw_only=True)
class Context:
    """Given to an action whose first parameter is a `Context`. Safe to use from the action's own thread.

    `effect`, `step` and `heartbeat` are awaited in an `async def` action and called plainly in any other.
    """

    task_id: str
    attempt: int
    tenant: str
    action: str
    queue: str
    tags: tuple[str, ...] = ()
    run_id: str | None = None
    lease_token: str = ""
    """Proof of the lease, for `hf.assert_lease` and SQL `holdfast.assert_lease`. A secret of this attempt."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _note: Callable[[str, dict[str, Any]], None] = lambda _kind, _detail: None
    _governed: Governed | None = None

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

    def effect(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        key: str | None = None,
        compensate: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Do something to the world outside, behind a gate, and give its receipt.

        `function` gets the arguments, and `idempotency_key` if it takes one. What it returns is stored as the receipt;
        any later call under the same key is answered with it and sends nothing. `key` names what is done, such as
        `receipt:7`; without one the effect is known by its task and by how many of that name came before.
        `compensate` is an action that can undo it.
        """
        return self._acting().effect(name, function, args, kwargs, key=key, compensate=compensate)

    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function whose result later attempts of this generation take over instead of calling it again."""
        return self._acting().step(name, function, args, kwargs)

    def heartbeat(self) -> Any:
        """Renew the lease now and learn whether to go on. Raises `LeaseLost` if the task is no longer ours.

        The worker renews leases by itself: this is for code that wants to be sure before it does something grave.
        """
        return self._acting().heartbeat()

    def _acting(self) -> Governed:
        if self._governed is None:
            raise RuntimeError("This context belongs to no running attempt; see `holdfast.testing` for tests.")
        return self._governed
