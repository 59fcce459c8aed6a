"""What user code sees of its attempt: who it is, whether to stop, and ways to act under its lease."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol


class DatasetWriter(Protocol):
    """One version of a dataset in the hands of an attempt: `await` each call in `async def`, not in plain functions.

    What it does becomes true with the completion of the attempt, all of it or nothing. `view` is what readers select
    from, `table` this version alone. `rows` are dicts by column or sequences in their order; they may come from a
    generator, and are never all in memory.
    """

    view: str
    table: str

    def append(self, rows: Any, *, partition: str = "") -> Any:
        """Add rows, skipping those whose key is there already; answers how many were given."""
        ...

    def replace(self, rows: Any, *, partition: str = "") -> Any:
        """Put rows in place of everything committed to this partition before; answers how many were given."""
        ...

    def cut_over(self, *, force: bool = False) -> Any:
        """Let readers see this version from the completion of this attempt on."""
        ...

    def count(self, partition: str | None = None) -> Any:
        """How many rows are committed to this version, or to one partition of it."""
        ...


def _no_datasets(_name: str, _version: int | None) -> DatasetWriter:
    raise LookupError("There are no datasets where this attempt runs.")


def _machine_now() -> datetime:
    return datetime.now(UTC)


class AttemptServices(Protocol):
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

    def afresh(self) -> Any: ...


@dataclass(slots=True, kw_only=True)
class Context:
    """Given to an action that takes a `Context` or a `ctx`. Safe to use from the action's own thread.

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
    _dataset: Callable[[str, int | None], DatasetWriter] = _no_datasets
    _governed: AttemptServices | None = None
    _now: Callable[[], datetime] = _machine_now

    def now(self) -> datetime:
        """The time of day by the app's clock, the machine's unless it was given another; with a time zone."""
        return self._now()

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

    def dataset(self, name: str, version: int | None = None) -> DatasetWriter:
        """A dataset the app declared: its newest version there, unless another is asked for."""
        return self._dataset(name, version)

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

    def _acting(self) -> AttemptServices:
        if self._governed is None:
            raise RuntimeError("This context belongs to no running attempt; see `holdfast.testing` for tests.")
        return self._governed
