"""The transport protocol between a worker and the engine, implemented for the database and for HTTP.

The exchange loop, the heartbeat thread and the set of running attempts use only this protocol. Every call may be
repeated. Failures on the way are raised as `ANY_DB_ERROR` of the store; the exchange loop then drops the connection and
resumes with the leases it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.authoring.action import Action
from holdfast.authoring.flow.flow import Flow
from holdfast.authoring.schedule import Schedule
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.leases import Claimed, Report, Settled
from holdfast.engine.lifecycle.tasks.exchange import Start
from holdfast.engine.lifecycle.tasks.heartbeat import Beat
from holdfast.execution.dataset_writer import Datasets, DeclaredDatasets
from holdfast.execution.effect_store import EffectStore
from holdfast.execution.notes import Notes
from holdfast.settings.settings import Settings
from holdfast.store.catalog import Lane
from holdfast.store.outage import Outage


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCallbacks:
    """Callbacks of a worker for its transport.

    `notify` reports the lanes that got work and whose turn it is. `look` makes the worker claim at once. `free` returns
    the number of free slots. `beat` reports that an attempt of this worker should stop; the response to the next
    heartbeat says which.
    """

    notify: Callable[[int, Sequence[int]], None]
    look: Callable[[Sequence[int]], None]
    free: Callable[[], int]
    beat: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignOn:
    """What a worker declares when it signs on."""

    name: str
    version: str
    actions: Mapping[str, Action[..., Any]]
    pulled: list[str]
    """The actions whose tasks it claims. The others have workers launched for them."""
    flows: Mapping[str, Flow[...]]
    queues: list[str] | None
    slots: int
    schedules: Sequence[Schedule]
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SignOnResult:
    """The worker's id, and the lease and heartbeat times it has to use."""

    worker_id: int
    lease_seconds: float
    heartbeat_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeResponse:
    """The response to one exchange.

    `may_have_more`: another claim could find tasks at once. `has_missed`: other transactions had locked claimable
    tasks, so the worker claims again soon.
    """

    settled: Settled
    claimed: Sequence[Claimed]
    may_have_more: bool
    has_missed: bool = False


class LaneNames(Protocol):
    """Lanes and policies by the ids that claims carry."""

    async def learn(self, lane_ids: Iterable[int], policy_ids: Iterable[int]) -> None: ...

    def lane(self, lane_id: int) -> Lane: ...

    def policy(self, policy_id: int) -> RetryPolicy: ...


class HeartbeatChannel(Protocol):
    """What the heartbeat thread needs, on its own connection."""

    async def beat(self, leases: Mapping[int, Any], ended: Mapping[int, Any], health: str) -> Beat:
        """Renew leases (task id → token), and report the worker's health.

        Also renew the leases of `ended` attempts that are not settled yet, except where the row is locked by the
        transaction that settles it.
        """
        ...

    async def hand_back(self, reports: Sequence[Report]) -> None:
        """Settle what can still be settled before the process ends."""
        ...

    def drop(self) -> None:
        """Drop a connection that failed."""
        ...

    async def close(self) -> None: ...


class WorkListener(Protocol):
    """How a worker learns of new work."""

    def expect(self, lanes: Sequence[int]) -> None:
        """Make the next claim try these lanes first, because a notification named them."""
        ...

    def await_work(self, *, is_free: bool) -> None:
        """Wait for work if the worker `is_free`, and for requests to stop an attempt; then call the worker."""
        ...


class Transport(WorkListener, Protocol):
    """The connection of one worker to the engine, used on its event loop."""

    settings: Settings
    outage: Outage
    """Where every part that retries records failures and recoveries."""
    names: LaneNames
    effect_store: EffectStore
    poll_seconds: float
    """The longest wait for work without a notification."""
    batch_bytes_max: int
    """How many bytes of output one exchange may carry."""
    decides: bool
    """Whether its policies are complete. Over HTTP only the server knows what follows a failure."""
    concurrent_exchanges: int
    """How many exchanges may run concurrently. Only the first sends notes."""

    async def sign_on(self, signing: SignOn, body: WorkerCallbacks) -> SignOnResult:
        """Declare the worker's actions, flows and schedules, register the worker, and start to listen."""
        ...

    async def resume(self, known: Callable[[], Sequence[tuple[int, Any]]]) -> Sequence[Claimed] | None:
        """Reconnect, and return leases of this worker that `known` does not contain. None if still connected.

        Leases are identified by task and token.
        """
        ...

    async def exchange(
        self, reports: Sequence[Report], want: int, notes: Notes | None, *, now: float, start: Start
    ) -> ExchangeResponse:
        """Store notes, settle reports, and claim at most `want` tasks.

        `start` may get some of them before the response.
        """
        ...

    async def settle_alone(self, report: Report) -> Settled:
        """Settle one report concurrently with the exchanges."""
        ...

    def drop(self) -> None:
        """Drop a connection that failed; `resume` opens another."""
        ...

    def pulse(self) -> HeartbeatChannel: ...

    def declared(self, datasets: Datasets) -> DeclaredDatasets:
        """Return how attempts access the app's datasets."""
        ...

    async def sign_off(self, *, is_idle: bool) -> None:
        """Sign off. A worker whose attempts still run stays registered until its leases expire."""
        ...


class LaunchedTransport(Transport, Protocol):
    """The transport of a launched worker."""

    async def attach(self, task_id: int, attempt: int, token: str) -> Sequence[Claimed]:
        """Exchange a one-shot token for the lease of its attempt.

        Raise `LeaseLost` if the token is not valid (any more).

        Not retried here: if the response is lost, `resume` finds the lease. Empty if the attempt's input could not be
        built and it was settled as failed.
        """
        ...
