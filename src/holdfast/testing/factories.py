"""Factories of tasks by state: `a_task()` returns a draft to enqueue, the others store a task in the given state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.tasks.failure import Failure
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.testing.engine_harness import EngineHarness, HeldLease

ACTION = "shop.charge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A task before it is enqueued."""

    action: str = ACTION
    queue: str = "default"
    input: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 5
    delay_seconds: float = 0.0
    key: str | None = None
    tags: tuple[str, ...] = ()
    policy: RetryPolicy = field(default_factory=lambda: RetryPolicy(jitter_factor=0.0))


def a_task(
    *,
    action: str = ACTION,
    queue: str = "default",
    input: Mapping[str, Any] | None = None,
    priority: int = 5,
    delay_seconds: float = 0.0,
    key: str | None = None,
    tags: tuple[str, ...] = (),
    **policy: Any,
) -> Draft:
    """Return a draft to enqueue. Further arguments go to its retry policy, which has no jitter by default."""
    rules = RetryPolicy(**{"jitter_factor": 0.0, **policy}).validated()
    return Draft(
        action=action,
        queue=queue,
        input=input or {},
        priority=priority,
        delay_seconds=delay_seconds,
        key=key,
        tags=tags,
        policy=rules,
    )


def a_delayed_task(delay_seconds: float = 60.0, **options: Any) -> Draft:
    """Return a draft that may not start before its time."""
    return a_task(delay_seconds=delay_seconds, **options)


def a_failure(message: str = "connection reset by peer", **options: Any) -> Failure:
    """Return the failure of an attempt; by default a retryable one."""
    return Failure(**{"code": "DAG_TASK_EXECUTION_EXCEPTION", "message": message, **options})


async def a_running_task(harness: EngineHarness, *, worker: str = "first", **options: Any) -> HeldLease:
    """Return the lease of a task that `worker` runs."""
    task = await harness.enqueue(a_task(**options))
    return await harness.claim_task(task.task_id, worker=worker)


async def a_completed_task(harness: EngineHarness, *, output: bytes = b"null", **options: Any) -> str:
    lease = await a_running_task(harness, **options)
    await harness.settle(lease, Completed(output))
    return lease.task_id


async def a_retrying_task(harness: EngineHarness, **options: Any) -> str:
    """Return a task whose first attempt failed and whose retry waits."""
    lease = await a_running_task(harness, **options)
    await harness.settle(lease, Failed(a_failure()))
    return lease.task_id


async def a_failed_task(harness: EngineHarness, **options: Any) -> str:
    """Return a task that failed for good."""
    lease = await a_running_task(harness, **{"max_retries": 0, **options})
    await harness.settle(lease, Failed(a_failure()))
    return lease.task_id


async def a_canceled_task(harness: EngineHarness, **options: Any) -> str:
    task = await harness.enqueue(a_task(**options))
    await harness.cancel(task.task_id)
    return task.task_id
