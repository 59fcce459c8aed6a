"""The remote workers that a server knows: their registration, when they were last seen, and their wait group.

A worker's registration never changes, so it is read once. All state here is a cache: a dropped entry is read again, and
the claim itself refuses a worker that has left.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from holdfast.core.identity.access import WorkerRight, require_queues, unknown_worker
from holdfast.core.values import bounds
from holdfast.engine.lifecycle.tasks.claim import Claimer, WorkerIdentity
from holdfast.server.worker_api.wait_registry import WaitGroup, WaitRegistry
from holdfast.store.database import Database, Session
from holdfast.store.session import first
from holdfast.store.sql.workers import workers as workers_sql

WORKER_SESSIONS_MAX = 10_000
SEEN_SECONDS = 10.0
"""How long frequent calls trust that a worker seen alive is still alive. Waiting workers are checked more often."""


@dataclass(slots=True)
class RemoteWorkerSession:
    """What the server knows of one worker."""

    identity: WorkerIdentity
    slots: int
    wait_group: WaitGroup
    queues: Sequence[str] | None
    token_id: str = ""
    is_draining: bool = False
    seen_at: float = float("-inf")
    _claimers: list[Claimer] = field(default_factory=list)

    @contextmanager
    def claiming(self) -> Iterator[Claimer]:
        """Yield a claimer for one call. A worker may have several calls under way, and each needs its own."""
        claimer = self._claimers.pop() if self._claimers else Claimer(self.identity)
        try:
            yield claimer
        finally:
            self._claimers.append(claimer)


async def beat_workers(database: Database, worker_ids: Sequence[int]) -> dict[int, str]:
    """Record heartbeats of workers; return the states of those that are known."""
    return {row.worker_id: row.state for row in await workers_sql.beat_workers(database, list(worker_ids), None)}


class RemoteWorkerSessions:
    """The recently active workers of one tenant."""

    def __init__(self, tenant_id: int, wait_registry: WaitRegistry, *, lease_seconds: float) -> None:
        self._tenant_id = tenant_id
        self._wait_registry = wait_registry
        self._lease_seconds = lease_seconds
        self._known: OrderedDict[tuple[int, tuple[str, ...] | None], RemoteWorkerSession] = OrderedDict()

    async def find(
        self,
        session: Session,
        worker_id: int,
        queues: Sequence[str] | None,
        right: WorkerRight,
        *,
        is_brief: bool = False,
    ) -> RemoteWorkerSession:
        """Return the worker's session. This counts as a heartbeat; frequent short calls are not recorded each time."""
        request = None if queues is None else tuple(bounds.valid_queue(queue) for queue in queues)
        key = (worker_id, request)
        worker_session = self._known.get(key)
        now = time.monotonic()
        if worker_session is None or not is_brief or now - worker_session.seen_at > SEEN_SECONDS:
            beat = first(await workers_sql.beat_workers(session, [worker_id], None))
            row = (
                None
                if beat is None or worker_session is not None
                else await workers_sql.read_worker(session, worker_id)
            )
            if beat is None or (worker_session is None and row is None):
                self._known.pop(key, None)
                raise unknown_worker(worker_id)
            # Another call of the same worker may have created the session meanwhile; all its calls share one.
            worker_session = worker_session or self._known.get(key)
            if worker_session is None:
                assert row is not None, "a worker without a session was read"
                worker_session = self._new(worker_id, row, request)
            worker_session.is_draining, worker_session.seen_at = beat.state == "draining", now
        self._known[key] = worker_session
        self._known.move_to_end(key)
        # Leased tasks are returned for a worker id, so only the token that registered the worker may use it.
        right.require(worker_id, queues=worker_session.queues, token_id=worker_session.token_id)
        require_queues(right.queues, queues or ())
        while len(self._known) > WORKER_SESSIONS_MAX:
            self._known.popitem(last=False)
        return worker_session

    async def require(self, session: Session, worker_id: int, right: WorkerRight) -> None:
        """Refuse the worker id of another token, or of other queues; an unknown id is accepted."""
        if (worker_session := self._known.get((worker_id, None))) is not None:
            right.require(worker_id, queues=worker_session.queues, token_id=worker_session.token_id)
        elif (row := await workers_sql.read_worker(session, worker_id)) is not None:
            right.require(worker_id, queues=row.queues, token_id=row.token_id)

    async def may_claim(self, session: Session, worker_id: int, worker_session: RemoteWorkerSession) -> bool:
        """Return whether a worker may still claim. A worker that left is read again at its next call."""
        row = await workers_sql.read_worker(session, worker_id)
        state = None if row is None else row.state
        worker_session.is_draining = state == "draining"
        if state in (None, "gone"):
            worker_session.seen_at = float("-inf")
        return state == "active"

    def _new(
        self, worker_id: int, row: workers_sql.ReadWorkerRow, request: tuple[str, ...] | None
    ) -> RemoteWorkerSession:
        served = row.queues if request is None else list(request)
        identity = WorkerIdentity(
            worker_id=worker_id, actions=row.actions, queues=served, lease_seconds=self._lease_seconds
        )
        wait_group = self._wait_registry.group(self._tenant_id, identity)
        return RemoteWorkerSession(
            identity=identity, slots=row.slots, wait_group=wait_group, queues=row.queues, token_id=row.token_id
        )

    def note_state(self, worker_id: int, state: str) -> None:
        """Record the state that a worker was sent, because it acts on it at once."""
        if (worker_session := self._known.get((worker_id, None))) is not None:
            worker_session.is_draining = state == "draining"

    def hear(self, worker_ids: Sequence[int], states: Mapping[int, str]) -> None:
        """Record which workers drain, and which are gone (without a state)."""
        request, now = set(worker_ids), time.monotonic()
        for (worker_id, _), worker_session in self._known.items():
            if worker_id in request:
                worker_session.seen_at = now if worker_id in states else float("-inf")
                worker_session.is_draining = states.get(worker_id) == "draining"
