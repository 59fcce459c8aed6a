"""Conversion between the worker's values and the messages of the server: actions, tasks, reports and responses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, assert_never

import msgspec

from holdfast.core.tasks.failure import Failure
from holdfast.core.tasks.outcome import Canceled, Completed, Failed, Lost, Outcome, Released, TimedOut
from holdfast.core.tasks.policy import PolicyDefaults, RetryPolicy
from holdfast.engine.leases import Claimed, Refusal, Report, Settled
from holdfast.engine.notifications import NO_NOTIFICATIONS
from holdfast.protocol.worker import (
    NOTHING,
    Completion,
    DeclaredAction,
    ExchangeAnswer,
    HandedTask,
    ReportedFailure,
)
from holdfast.store.catalog import Lane


class HttpLaneNames:
    """Lanes and policies as the server names them in tasks; the ids are local to this worker."""

    def __init__(self) -> None:
        self._lanes: list[Lane] = []
        self._policies: list[RetryPolicy] = []
        self._lane_ids: dict[tuple[str, str, str], int] = {}
        self._policy_ids: dict[tuple[float | None, int | None], int] = {}

    async def learn(self, lane_ids: Iterable[int], policy_ids: Iterable[int]) -> None:
        """Do nothing: each task brings its names."""

    def lane(self, lane_id: int) -> Lane:
        return self._lanes[lane_id]

    def policy(self, policy_id: int) -> RetryPolicy:
        return self._policies[policy_id]

    def claimed(self, task: HandedTask) -> Claimed:
        """Convert a task of the server to a `Claimed`. Only the server knows how much of its retry budget is used."""
        lane = (task.action, task.queue, task.tenant)
        if (lane_id := self._lane_ids.get(lane)) is None:
            lane_id = self._lane_ids[lane] = len(self._lanes)
            self._lanes.append(Lane(lane_id, *lane))
        bounds = (task.timeout_seconds, task.memory_bytes_max)
        if (policy_id := self._policy_ids.get(bounds)) is None:
            policy_id = self._policy_ids[bounds] = len(self._policies)
            self._policies.append(RetryPolicy(timeout_seconds=bounds[0], memory_bytes_max=bounds[1]))
        return Claimed(
            int(task.task_id),
            task.attempt,
            task.lease_token,
            lane_id,
            policy_id,
            task.attempt - 1,
            0,
            0,
            None if task.run_id is None else int(task.run_id),
            None,
            bytes(task.input),
            task.tags,
        )


def declared_action(action: Any) -> DeclaredAction:
    """Return what the code declares about an action. The server's settings decide the rest."""
    policy = action.policy(PolicyDefaults()).to_json()
    # The server does not know launchers, nor what they mean for retries.
    declared = [*action.overrides, *(() if action.launcher is None else ("max_retries",))]
    return DeclaredAction(
        action=action.name,
        queue=action.queue,
        priority=action.priority,
        policy={name: policy[name] for name in declared if name in policy},
        breaker=None if action.breaker is None else asdict(action.breaker),
        quota=None if action.quota is None else asdict(action.quota),
    )


def completion(report: Report) -> Completion:
    """Convert a report to its wire format."""
    status, failure = _status(report.outcome)
    outcome = report.outcome
    return Completion(
        str(report.task_id),
        report.attempt,
        report.lease_token,
        status,  # type: ignore[arg-type]
        outputs=msgspec.Raw(outcome.output) if type(outcome) is Completed else NOTHING,
        error=None if failure is None else _reported(failure),
        input=NOTHING if failure is None or report.input is None else msgspec.Raw(report.input),
    )


def _status(outcome: Outcome) -> tuple[str, Failure | None]:
    match outcome:
        case Completed():
            return "completed", None
        case Failed(failure):
            return "failed", failure
        case TimedOut(failure):
            return "timed_out", failure
        case Lost(failure):
            return "lost", failure
        case Canceled():
            return "canceled", None
        case Released():
            return "released", None
        case _:
            assert_never(outcome)


def _reported(failure: Failure) -> ReportedFailure:
    return ReportedFailure(
        failure.code,
        failure.message,
        failure.type,
        failure.traceback,
        said=None if failure.said is None else failure.said.value,
        retry_after_seconds=None if failure.retry_after is None else failure.retry_after.total_seconds(),
        bases=list(failure.bases),
        frames=list(failure.frames),
        effect=failure.effect,
    )


def settled_of(answer: ExchangeAnswer) -> Settled:
    """Return which reports of an exchange the server accepted and refused."""
    refused = [Refusal(int(refusal.task_id), refusal.attempt, refusal.winner) for refusal in answer.refused]
    return Settled(answer.accepted, refused, NO_NOTIFICATIONS)
