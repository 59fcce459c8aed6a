"""The line from a worker to its dispatcher: one Protocol, spoken directly to the database or over HTTP.

The loop, the heart and the hold know nothing but this. Every call may be repeated; what went wrong on the way is raised
as trouble (`TROUBLE` of the store), after which the loop drops the line and resumes it with what it knows.
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
class Listening:
    """What a transport calls when it hears of work: `notify` with the lanes that got some and whose turn it is, `look`
    to have the worker look at once, `free` to learn how many slots are free, and `beat` when an attempt of this worker
    was asked to stop: the answer to the next beat says which."""

    notify: Callable[[int, Sequence[int]], None]
    look: Callable[[Sequence[int]], None]
    free: Callable[[], int]
    beat: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signing:
    """What a worker says about itself when it signs on."""

    name: str
    version: str
    actions: Mapping[str, Action[..., Any]]
    pulled: list[str]
    """The actions whose tasks it takes: the others have workers launched for them."""
    flows: Mapping[str, Flow[...]]
    queues: list[str] | None
    slots: int
    schedules: Sequence[Schedule]
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """Who the worker is from now on, and the pace it has to keep."""

    worker_id: int
    lease_seconds: float
    heartbeat_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeResponse:
    """The answer to one exchange. `may_have_more`: another claim could find something at once. `has_missed`: there is
    work that others held just now; the worker looks for it again soon."""

    settled: Settled
    claimed: Sequence[Claimed]
    may_have_more: bool
    has_missed: bool = False


class LaneNames(Protocol):
    """Lanes and policies by the numbers that claims carry."""

    async def learn(self, lane_ids: Iterable[int], policy_ids: Iterable[int]) -> None: ...

    def lane(self, lane_id: int) -> Lane: ...

    def policy(self, policy_id: int) -> RetryPolicy: ...


class HeartbeatChannel(Protocol):
    """What the heart needs, in its own thread and on its own connection."""

    async def beat(self, leases: Mapping[int, Any], ended: Mapping[int, Any], health: str) -> Beat:
        """Renew leases (task id → token), keep those of attempts that ended and are not settled yet, where that can be
        done without waiting for who settles them, and say how the worker feels."""
        ...

    async def hand_back(self, reports: Sequence[Report]) -> None:
        """Settle what can still be settled before the process ends."""
        ...

    def drop(self) -> None:
        """Forget a connection that failed."""
        ...

    async def close(self) -> None: ...


class WorkListener(Protocol):
    """How a worker hears of work."""

    def expect(self, lanes: Sequence[int]) -> None:
        """A ring named lanes: the next claim tries them first."""
        ...

    def stand_by(self, *, is_free: bool) -> None:
        """Nothing is to be said: wake the worker when there may be work, if it `is_free`, or an attempt shall stop."""
        ...


class Transport(WorkListener, Protocol):
    """One worker's line, on its event loop."""

    settings: Settings
    outage: Outage
    """Where everything that repeats what failed says so."""
    names: LaneNames
    effect_store: EffectStore
    poll_seconds: float
    """The longest wait for work when no ring comes."""
    batch_bytes_max: int
    """How much output one exchange may carry."""
    decides: bool
    """Whether the policies it gives are whole: over HTTP the server alone knows what follows a failure."""
    concurrent_exchanges: int
    """How many exchanges may be under way at once. Notes go with the first alone."""

    async def sign_on(self, signing: Signing, body: Listening) -> Signed:
        """Declare what the worker's code has, register it, and listen."""
        ...

    async def resume(self, known: Callable[[], Sequence[tuple[int, Any]]]) -> Sequence[Claimed] | None:
        """None while the line stands. Else connect, and give leases of this worker that `known` does not name.

        Leases are known as task and token.
        """
        ...

    async def exchange(
        self, reports: Sequence[Report], want: int, notes: Notes | None, *, now: float, start: Start
    ) -> ExchangeResponse:
        """Keep notes, settle reports, claim at most `want`; `start` may be handed some of these before the answer."""
        ...

    async def settle_alone(self, report: Report) -> Settled:
        """Settle one report beside the exchange."""
        ...

    def drop(self) -> None:
        """Forget a connection that failed; `resume` makes another."""
        ...

    def pulse(self) -> HeartbeatChannel: ...

    def declared(self, datasets: Datasets) -> DeclaredDatasets:
        """How attempts reach the app's datasets."""
        ...

    async def sign_off(self, *, is_idle: bool) -> None:
        """Leave; one whose attempts still run stays registered, so that its leases are waited for."""
        ...


class LaunchedLine(Transport, Protocol):
    """The line of a launched worker."""

    async def attach(self, task_id: int, attempt: int, token: str) -> Sequence[Claimed]:
        """Swap a one-shot token for the lease of its attempt; `LeaseLost` if it is not good (any more).

        Not repeated by itself: an answer that got lost is found by `resume`. Nothing, where the attempt could not have
        its input and was settled as failed already.
        """
        ...
