"""Rows of the views `tasks` and `attempts`, as values that a test can compare."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from holdfast.core.tasks.states import AttemptState, TaskState


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTask:
    """One row of the view `tasks`."""

    task_id: str
    tenant: str
    queue: str
    action: str
    state: TaskState
    attempt: int
    retry_count: int
    max_retries: int
    max_attempts: int
    loss_count: int
    max_losses: int
    generation: int
    priority: int
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    next_retry_at: datetime | None
    due_at: datetime | None
    worker_id: int | None
    lease_expires_at: datetime | None
    cancel_at: datetime | None
    key: str | None
    tags: list[str] | None
    original_execution: str | None
    retry_reason: str | None
    input: bytes

    @classmethod
    def of(cls, row: Any) -> StoredTask:
        values = _values(cls, row)
        return cls(**values | {"state": TaskState(values["state"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One row of the view `attempts`."""

    task_id: str
    attempt: int
    state: AttemptState
    worker_id: int | None
    lease_token: UUID
    started_at: datetime
    ended_at: datetime | None
    code: str | None
    type: str | None
    message: str | None
    traceback: str | None
    decision: str | None
    reason: str | None
    rule: str | None
    sentence: str | None
    retry_at: datetime | None
    output: bytes | None

    @classmethod
    def of(cls, row: Any) -> AttemptRow:
        values = _values(cls, row)
        return cls(**values | {"state": AttemptState(values["state"])})


def _values(kind: Any, row: Any) -> dict[str, Any]:
    return {field.name: row[field.name] for field in fields(kind)}
