"""Conversion of claimed tasks to the wire format for remote workers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

import msgspec

from holdfast.core.identity.access import require_queues
from holdfast.core.tasks.outcome import Failed
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.engine import Engine
from holdfast.engine.leases import Claimed, report_of
from holdfast.engine.lifecycle.tasks.settle_one_by_one import settle_together
from holdfast.protocol.worker import HandedTask
from holdfast.store.catalog import Lane
from holdfast.store.database import Session
from holdfast.store.sql.tasks import lease as lease_sql


class TaskHandout:
    """Hands out tasks to the remote workers of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def require_queue(self, session: Session, claimed: Claimed, allowed: Collection[str] | None) -> None:
        """Refuse a task of another queue after the claim, which rolls back: only the claimed row proves its queue."""
        if allowed is not None:
            await self._engine.catalog.learn([claimed.lane_id], (), session=session)
            require_queues(allowed, [self._engine.catalog.lane(claimed.lane_id).queue])

    async def hand_out(
        self, session: Session, claimed: Sequence[Claimed], *, with_lease_ends: bool
    ) -> list[HandedTask]:
        """Return claimed tasks in wire format. A node whose input cannot be built is settled as failed instead."""
        if not claimed:
            return []
        faulty = [task for task in claimed if task.fault is not None]
        if faulty:
            await self._fail(session, faulty)
            claimed = [task for task in claimed if task.fault is None]
        catalog = self._engine.catalog
        await catalog.learn({task.lane_id for task in claimed}, {task.policy_id for task in claimed}, session=session)
        # One claim has one token for all its tasks, and few lanes and policies.
        tokens = {token: str(token) for token in {task.lease_token for task in claimed}}
        terms = {
            (lane_id, policy_id): (catalog.lane(lane_id), catalog.policy(policy_id))
            for lane_id, policy_id in {(task.lane_id, task.policy_id) for task in claimed}
        }
        ends: dict[int, datetime | None] = (
            {row[0]: row[1] for row in await lease_sql.lease_ends(session, [task.task_id for task in claimed])}
            if with_lease_ends
            else dict.fromkeys(task.task_id for task in claimed)
        )
        return [
            _handed(task, *terms[task.lane_id, task.policy_id], tokens[task.lease_token], ends[task.task_id])
            for task in claimed
            if task.task_id in ends
        ]

    async def _fail(self, session: Session, faulty: Sequence[Claimed]) -> None:
        await self._engine.catalog.learn((), {task.policy_id for task in faulty}, session=session)
        reports = [report_of(task, Failed(task.fault)) for task in faulty if task.fault is not None]
        settled = await settle_together(session, self._engine.catalog, reports)
        self._engine.notifier.notify(lanes=settled.notifications.lanes, done=settled.notifications.awaited)


def _handed(
    claimed: Claimed, lane: Lane, policy: RetryPolicy, lease_token: str, lease_expires_at: datetime | None
) -> HandedTask:
    return HandedTask(
        task_id=str(claimed.task_id),
        attempt=claimed.attempt,
        lease_token=lease_token,
        lease_expires_at=lease_expires_at,
        action=lane.action,
        queue=lane.queue,
        tenant=lane.tenant,
        input=msgspec.Raw(claimed.input),
        tags=list(claimed.tags or ()),
        run_id=None if claimed.run_id is None else str(claimed.run_id),
        timeout_seconds=policy.timeout_seconds,
        memory_bytes_max=policy.memory_bytes_max,
    )
