"""Hints and what a worker does with one: look up the task, leave the hint to others, or drop it.

A hint is untrusted: any program with access to the carrier can write one, and it may be lost, late, duplicated or
broken. Only `task_id` and `attempt` of its body are read. Both are checked against the database, so a forged hint costs
at most one query.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

BODY_BYTES_MAX = 256 * 1024
ID_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """A task that may be claimable, in its `attempt`-th attempt. Action and queue determine where the hint is sent."""

    task_id: int
    attempt: int = 1
    action: str = ""
    queue: str = ""
    sends: int | None = field(default=None, compare=False)
    """The number of this sending, as the outbox counts them; it travels as metadata, not in the body."""

    def body(self) -> str:
        """Return the message body; ids are text, as in every public interface."""
        return json.dumps({"task_id": str(self.task_id), "attempt": self.attempt})


def read_hint(body: str | bytes, sends: int | None = None) -> Hint | None:
    """Read a message; None if it names no task. An `attempt` that is not a positive integer counts as 1."""
    if len(body) > BODY_BYTES_MAX:
        return None
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return None
    task_id = _task_id(said.get("task_id")) if isinstance(said, dict) else None
    return None if task_id is None else Hint(task_id=task_id, attempt=_attempt(said.get("attempt")), sends=sends)


def _task_id(value: Any) -> int | None:
    if type(value) is str and value.isascii() and value.isdigit() and len(value) <= len(str(ID_MAX)):
        value = int(value)
    return value if type(value) is int and 0 < value <= ID_MAX else None


def _attempt(value: Any) -> int:
    """Return the attempt. `True`, 2.0 and "2" are not attempts: JSON distinguishes them from 2."""
    return value if type(value) is int and value > 0 else 1


class HintAction(StrEnum):
    """What to do with a message."""

    LOOK = "look"
    LEAVE = "leave"
    DROP = "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class HintDecision:
    """A decision and its reason, for the log."""

    verdict: HintAction
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HintedTask:
    """The state of the task that a hint names. `state` None: it has ended or does not exist. `sends`: of its hint."""

    state: str | None
    tenant_id: int | None = None
    sends: int | None = None
    attempt: int = 0
    worker_id: int | None = None
    has_valid_lease: bool = False
    attempts_max: int = 0
    lane_id: int | None = None
    action: str = ""
    queue: str = ""
    is_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """The worker that reads hints, and what it serves. `queues` None means every queue."""

    worker_id: int
    tenant_id: int
    actions: Collection[str]
    queues: Collection[str] | None


def judge(hint: Hint, task: HintedTask, reader: Reader) -> HintDecision:
    """Decide what to do with a hint.

    A hint is dropped if no worker needs it any more. It is left if it may still matter, to this worker later or to
    another one now.
    """
    if task.state is None:
        return HintDecision(verdict=HintAction.DROP, reason="terminal" if task.is_over else "unknown")
    is_open = task.state in ("r", "v")
    if hint.attempt != (task.attempt if is_open else task.attempt + 1):
        reason = "over_budget" if hint.attempt > task.attempts_max else "stale"
        return HintDecision(verdict=HintAction.DROP, reason=reason)
    if task.state == "w":
        # The task's own hint follows when it is due.
        return HintDecision(verdict=HintAction.DROP, reason="not_due")
    if is_open:
        if task.worker_id == reader.worker_id and task.has_valid_lease:
            return HintDecision(verdict=HintAction.DROP, reason="duplicate")
        return HintDecision(verdict=HintAction.LEAVE, reason="held_by_another")
    if _is_served(task, reader):
        return HintDecision(verdict=HintAction.LOOK, reason="waiting")
    if hint.sends is not None and task.sends is not None and hint.sends < task.sends:
        # The outbox sent it again since. Otherwise copies of a hint that no worker serves would pile up.
        return HintDecision(verdict=HintAction.DROP, reason="superseded")
    return HintDecision(verdict=HintAction.LEAVE, reason="not_served_here")


def _is_served(task: HintedTask, reader: Reader) -> bool:
    is_of_queue = reader.queues is None or task.queue in reader.queues
    return task.tenant_id == reader.tenant_id and task.action in reader.actions and is_of_queue
