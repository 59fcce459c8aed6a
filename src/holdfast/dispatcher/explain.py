"""Explain: read the evidence about one task, in at most two statements, and hand it to the pure explanation."""

from __future__ import annotations

import json
from typing import Any

from holdfast.core.explain import Explanation, explain
from holdfast.core.facts import CrewFacts, FailureFacts, Position, QueueFacts, TaskFacts, WorkerFacts
from holdfast.errors import NotFound
from holdfast.store.database import Database
from holdfast.store.statements import sql

_EXPLAIN_TASK = sql("explain_task")
_EXPLAIN_WAIT = sql("explain_wait")

AHEAD_MAX = 1_000
SILENT_SECONDS = 30.0
"""A worker unheard for longer is not counted as live, whether or not a loop has marked it lost."""

_FAILURES = {"f": "failed", "t": "timed_out", "l": "lost"}


async def why(database: Database, tenant_id: int, task_id: int) -> Explanation:
    """Explain why a task is where it is, or raise `NotFound`."""
    return explain(await read_facts(database, tenant_id, task_id))


async def read_facts(database: Database, tenant_id: int, task_id: int) -> TaskFacts:
    row = await database.fetchrow(_EXPLAIN_TASK, task_id, tenant_id)
    if row is None:
        raise NotFound(
            f"There is no task {task_id}.",
            code="task_not_found",
            advice="Completed tasks are kept for as long as HOLDFAST_RETENTION_DAYS says.",
        )
    wait = None
    if row["position"] == Position.QUEUED:
        wait = await database.fetchrow(
            _EXPLAIN_WAIT, row["lane_id"], task_id, row["priority"], AHEAD_MAX, SILENT_SECONDS
        )
    return TaskFacts(
        task_id=str(task_id),
        action=row["action"],
        position=Position(row["position"]),
        at=row["at"],
        created_at=row["created_at"],
        queue=QueueFacts(name=row["queue"]) if wait is None else _queue(row["queue"], wait),
        crew=CrewFacts() if wait is None else _crew(wait),
        attempt=row["attempt"],
        retries=row["retries"],
        max_retries=row["max_retries"],
        losses=row["losses"],
        max_losses=row["max_losses"],
        generation=row["generation"],
        due_at=row["due_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        lease_expires_at=row["lease_expires_at"],
        timeout_seconds=row["timeout_seconds"],
        cancel_at=row["cancel_at"],
        actor=row["actor"] or "",
        reason=row["reason"] or "",
        worker=_worker(row, "worker"),
        failure=_failure(row),
        progress=_progress(row["progress"]),
        ahead=0 if wait is None else wait["ahead"],
        ahead_is_more=wait is not None and wait["ahead"] >= AHEAD_MAX,
        output_bytes=row["output_bytes"],
        unknown_effects=tuple(row["unknown_effects"] or ()),
    )


def _queue(name: str, wait: Any) -> QueueFacts:
    room = wait["starts_room"]
    return QueueFacts(
        name=name,
        paused_at=wait["paused_at"],
        paused_by=wait["paused_by"] or "",
        paused_reason=wait["paused_reason"] or "",
        max_running=wait["max_running"],
        running=wait["running"],
        starts_per_second=wait["starts_per_second"],
        starts_room=1 if room is None else room,
    )


def _crew(wait: Any) -> CrewFacts:
    elsewhere = _worker(wait, "elsewhere")
    return CrewFacts(
        able=wait["able"], slots=wait["slots"], busy=wait["busy"], last=_worker(wait, "last"), elsewhere=elsewhere
    )


def _worker(row: Any, prefix: str) -> WorkerFacts | None:
    if row[f"{prefix}_name"] is None:
        return None
    found = dict(row)
    queues = found.get(f"{prefix}_queues")
    return WorkerFacts(
        name=found[f"{prefix}_name"],
        state=found[f"{prefix}_state"],
        beat_at=found[f"{prefix}_beat_at"],
        ended_at=found.get(f"{prefix}_ended_at"),
        version=found[f"{prefix}_version"],
        queues=None if queues is None else tuple(queues),
    )


def _failure(row: Any) -> FailureFacts | None:
    if row["failure_attempt"] is None:
        return None
    return FailureFacts(
        attempt=row["failure_attempt"],
        state=_FAILURES[row["failure_state"]],
        code=row["code"],
        type=row["type"],
        message=row["message"],
        reason=row["failure_reason"],
        rule=row["rule"],
        sentence=row["sentence"],
        ended_at=row["failure_ended_at"],
    )


def _progress(detail: str | None) -> str:
    """What the action last said of its progress: `3/10 pages read`."""
    if detail is None:
        return ""
    said = json.loads(detail)
    done, total = said.get("done", 0), said.get("total", 1)
    share = f"{100 * done / total:.0f} %" if total in (0, 1) and total else f"{done:g}/{total:g}"
    return f"{share} {said.get('message', '')}".strip()
