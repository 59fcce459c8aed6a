"""The context of an attempt for user code: its identity, whether to stop, and operations under its lease."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol


class DatasetWriter(Protocol):
    """One version of a dataset, as an attempt writes it: `await` each call in `async def`, not in plain functions.

    All changes take effect together when the attempt completes, or not at all. `view` is what readers select from,
    `table` this version alone. `rows` are dicts by column or sequences in column order; they may come from a generator,
    and are never all in memory.
    """

    view: str
    table: str

    def append(self, rows: Any, *, partition: str = "") -> Any:
        """Add rows, skipping those whose key exists already; return how many were given."""
        ...

    def replace(self, rows: Any, *, partition: str = "") -> Any:
        """Replace everything committed to this partition by these rows; return how many were given."""
        ...

    def cut_over(self, *, force: bool = False) -> Any:
        """Make this version visible to readers when this attempt completes."""
        ...

    def count(self, partition: str | None = None) -> Any:
        """Return how many rows are committed to this version, or to one of its partitions."""
        ...


def _no_datasets(_name: str, _version: int | None) -> DatasetWriter:
    raise LookupError("Datasets are not available where this attempt runs.")


def _machine_now() -> datetime:
    return datetime.now(UTC)


class AttemptServices(Protocol):
    """Performs the effects, steps and heartbeats of a running attempt."""

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
    """Passed to an action that has a parameter of type `Context` or named `ctx`. Safe to use from the action's own
    thread.

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
    _effect_runner: AttemptServices | None = None
    _now: Callable[[], datetime] = _machine_now

    def now(self) -> datetime:
        """Return the time of day by the app's clock, by default the machine's; with a time zone."""
        return self._now()

    @property
    def is_canceled(self) -> bool:
        """True once a cancel of this attempt was requested, its deadline passed, or its lease was lost."""
        return self._stop.is_set()

    def log(self, message: str, **fields: Any) -> None:
        """Record a line that `holdfast task logs` shows."""
        self._note("log", {"message": str(message)[:8192], **fields})

    def progress(self, done: float, total: float = 1.0, message: str = "") -> None:
        """Report the progress of the attempt."""
        self._note("progress", {"done": float(done), "total": float(total), "message": str(message)[:512]})

    def dataset(self, name: str, version: int | None = None) -> DatasetWriter:
        """Return a dataset that the app declared: its newest declared version, unless another is given."""
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
        """Perform an effect on the outside world through the effect gate, and return its receipt.

        `function` gets the arguments, and `idempotency_key` if it has such a parameter. Its result is stored as the
        receipt; a later call under the same key returns the receipt and sends nothing. `key` names what is done, such
        as `receipt:7`; without one the effect is identified by its task and by how many effects of that name came
        before. `compensate` is an action that can undo it.
        """
        return self._acting().effect(name, function, args, kwargs, key=key, compensate=compensate)

    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function whose stored result later attempts of this generation reuse instead of calling it again."""
        return self._acting().step(name, function, args, kwargs)

    def heartbeat(self) -> Any:
        """Renew the lease now and return whether to continue. Raises `LeaseLost` if this attempt no longer has the
        lease.

        The worker renews leases by itself. This is for code that must be certain before it does something irreversible.
        """
        return self._acting().heartbeat()

    def _acting(self) -> AttemptServices:
        if self._effect_runner is None:
            raise RuntimeError("This context belongs to no running attempt; see `holdfast.testing` for tests.")
        return self._effect_runner
