"""The workers elsewhere that a server knows: as they registered, when they were last seen, and where they wait.

What a worker registered with never changes, so it is read once. Nothing here is needed but for speed: who is forgotten
is read again, and whoever left is refused by the claim itself.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.identity.access import WorkerRight, require_queues, unknown_worker
from holdfast.core.values import bounds
from holdfast.engine.lifecycle.tasks.claim import Claimer, WorkerIdentity
from holdfast.server.worker_api.wait_registry import WaitGroup, WaitRegistry
from holdfast.store.database import Database, Session
from holdfast.store.statements import sql

_READ_WORKER = sql("read_worker")
_BEAT_WORKERS = sql("beat_workers")

GUESTS_MAX = 10_000
SEEN_SECONDS = 10.0
"""How long a worker that was seen alive is believed to be so, by calls that come often; those who wait are looked at
more often than that."""


@dataclass(slots=True)
class RemoteWorkerSession:
    """What is known here of one worker."""

    identity: WorkerIdentity
    slots: int
    place: WaitGroup
    queues: Sequence[str] | None
    token_id: str = ""
    is_draining: bool = False
    seen_at: float = float("-inf")
    _claimers: list[Claimer] = field(default_factory=list)

    @contextmanager
    def claiming(self) -> Iterator[Claimer]:
        """A view of where work is, for one claim: a worker may have several calls under way, each looks for itself."""
        claimer = self._claimers.pop() if self._claimers else Claimer(self.identity)
        try:
            yield claimer
        finally:
            self._claimers.append(claimer)


async def beat_workers(database: Database, worker_ids: Sequence[int]) -> dict[int, str]:
    """Write down that workers live; answers the states of those that are known."""
    return {row["worker_id"]: row["state"] for row in await database.fetch(_BEAT_WORKERS, list(worker_ids), None)}


class RemoteWorkerSessions:
    """The workers of one tenant that called lately."""

    def __init__(self, tenant_id: int, wait_registry: WaitRegistry, *, lease_seconds: float) -> None:
        self._tenant_id = tenant_id
        self._lobby = wait_registry
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
        """The worker as it registered. Asking counts as a beat; who asks briefly and often is not written each time."""
        asked = None if queues is None else tuple(bounds.valid_queue(queue) for queue in queues)
        key = (worker_id, asked)
        worker_session = self._known.get(key)
        now = time.monotonic()
        if worker_session is None or not is_brief or now - worker_session.seen_at > SEEN_SECONDS:
            beat = await session.fetchrow(_BEAT_WORKERS, [worker_id], None)
            row = (
                None if beat is None or worker_session is not None else await session.fetchrow(_READ_WORKER, worker_id)
            )
            if beat is None or (worker_session is None and row is None):
                self._known.pop(key, None)
                raise unknown_worker(worker_id)
            # Another call of the same worker may have made it out meanwhile: what is heard of it, all its calls hear.
            worker_session = worker_session or self._known.get(key) or self._new(worker_id, row, asked)
            worker_session.is_draining, worker_session.seen_at = beat["state"] == "draining", now
        self._known[key] = worker_session
        self._known.move_to_end(key)
        # What a worker holds is handed out under its id, so only its own token may use it.
        right.require(worker_id, queues=worker_session.queues, token_id=worker_session.token_id)
        require_queues(right.queues, queues or ())
        while len(self._known) > GUESTS_MAX:
            self._known.popitem(last=False)
        return worker_session

    async def require(self, session: Session, worker_id: int, right: WorkerRight) -> None:
        """Refuse the id of another token's worker, or of a worker of other queues; an unknown one is let through."""
        if (worker_session := self._known.get((worker_id, None))) is not None:
            right.require(worker_id, queues=worker_session.queues, token_id=worker_session.token_id)
        elif (row := await session.fetchrow(_READ_WORKER, worker_id)) is not None:
            right.require(worker_id, queues=row["queues"], token_id=row["token_id"])

    async def may_claim(self, session: Session, worker_id: int, worker_session: RemoteWorkerSession) -> bool:
        """Whether a worker may still take work. One that left is asked for its registration when it calls again."""
        row = await session.fetchrow(_READ_WORKER, worker_id)
        state = None if row is None else row["state"]
        worker_session.is_draining = state == "draining"
        if state in (None, "gone"):
            worker_session.seen_at = float("-inf")
        return state == "active"

    def _new(self, worker_id: int, row: Any, asked: tuple[str, ...] | None) -> RemoteWorkerSession:
        served = row["queues"] if asked is None else list(asked)
        identity = WorkerIdentity(
            worker_id=worker_id, actions=row["actions"], queues=served, lease_seconds=self._lease_seconds
        )
        place = self._lobby.place(self._tenant_id, identity)
        return RemoteWorkerSession(
            identity=identity, slots=row["slots"], place=place, queues=row["queues"], token_id=row["token_id"]
        )

    def told(self, worker_id: int, state: str) -> None:
        """Take note of what a worker was told: it acts upon it at once."""
        if (worker_session := self._known.get((worker_id, None))) is not None:
            worker_session.is_draining = state == "draining"

    def hear(self, worker_ids: Sequence[int], states: Mapping[int, str]) -> None:
        """Take note of who drains, and of who is gone: without a state."""
        asked, now = set(worker_ids), time.monotonic()
        for (worker_id, _), worker_session in self._known.items():
            if worker_id in asked:
                worker_session.seen_at = now if worker_id in states else float("-inf")
                worker_session.is_draining = states.get(worker_id) == "draining"
