"""The transport protocol between a worker and the engine, implemented for the database and for HTTP.

A worker's exchange loop and heartbeat thread use only this protocol. Every call may be
repeated. Failures on the way are raised as `ANY_DB_ERROR` of the store; the exchange loop then drops the connection and
resumes with the leases it knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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


class ConnectedWorker(Protocol):
    """The worker as its transport sees it. The transport calls these methods on the worker's event loop."""

    def on_notification(self, turn: int, lanes: Sequence[int]) -> None:
        """Handle a notification of work in these lanes. `turn` decides which workers claim first."""
        ...

    def claim_now(self, lanes: Sequence[int]) -> None:
        """Claim at once, from these lanes first."""
        ...

    def claimable_slots(self) -> int:
        """Return how many tasks the worker would claim now."""
        ...

    def request_heartbeat(self) -> None:
        """Send a heartbeat soon: an attempt of this worker should stop, and the response says which."""
        ...

    def known_leases(self) -> Sequence[tuple[int, Any]]:
        """Return (task, token) of the leases that `resume` must not return."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SignOn:
    """What a worker declares when it signs on."""

    name: str
    version: str
    actions: Mapping[str, Action[..., Any]]
    claimed_actions: list[str]
    """The actions whose tasks it claims. The others have workers launched for them."""
    flows: Mapping[str, Flow[...]]
    queues: list[str] | None
    slots: int
    labels: Mapping[str, str]
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
    has_full_policies: bool
    """Whether its policies are complete. Over HTTP only the server knows what follows a failure."""
    concurrent_exchanges: int
    """How many exchanges may run concurrently. Only the first sends notes."""

    async def sign_on(self, declaration: SignOn, worker: ConnectedWorker) -> SignOnResult:
        """Declare the worker's actions, flows and schedules, register the worker, and start to listen."""
        ...

    async def resume(self) -> Sequence[Claimed] | None:
        """Reconnect, and return the worker's leases that it does not know. None if still connected."""
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

    def heartbeat_channel(self) -> HeartbeatChannel:
        """Return a channel for the heartbeat thread, with its own connection."""
        ...

    def declared_datasets(self, datasets: Datasets) -> DeclaredDatasets:
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
