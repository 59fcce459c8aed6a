"""Release rule of a blocked node: a decision on four counters, never on the upstreams themselves.

Each upstream is pending until it ends. Then it counts as succeeded (completed), skipped, or failed (failed for good,
upstream_failed, canceled: it will produce no output). The result does not depend on the order in which upstreams end:

- all_success: one failed upstream is enough for upstream_failed. Once none is pending, a skipped one skips the node;
  otherwise it runs. So a skipped branch skips the nodes that need it, and a skip never hides a failure.
- all_done: runs once none is pending, however they ended.
- one_success: runs with the first success. Once none is pending and none succeeded, it is upstream_failed if one
  failed, else skipped.

A node without upstreams runs. Only a blocked node is decided on, so later ends change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import assert_never

from holdfast.core.flows.nodes import TriggerRule
from holdfast.core.tasks.states import TaskState


class Release(StrEnum):
    """The decision about a blocked node."""

    WAIT = "wait"
    RUN = "run"
    SKIP = "skip"
    UPSTREAM_FAILED = "upstream_failed"


RELEASE_STATES: Mapping[Release, TaskState] = MappingProxyType(
    {
        Release.WAIT: TaskState.BLOCKED,
        Release.RUN: TaskState.QUEUED,
        Release.SKIP: TaskState.SKIPPED,
        Release.UPSTREAM_FAILED: TaskState.UPSTREAM_FAILED,
    }
)
"""The state in which each decision leaves a node; a false condition turns RUN into SKIP."""


class Counter(StrEnum):
    """The counter to which an ended upstream moves from `pending`."""

    SUCCEEDED = "succeeded"
    SKIPPED = "skipped"
    FAILED = "failed"


COUNTERS: Mapping[TaskState, Counter] = MappingProxyType(
    {
        TaskState.COMPLETED: Counter.SUCCEEDED,
        TaskState.SKIPPED: Counter.SKIPPED,
        TaskState.FAILED: Counter.FAILED,
        TaskState.UPSTREAM_FAILED: Counter.FAILED,
        TaskState.CANCELED: Counter.FAILED,
    }
)
"""The counter for each end; `failed` only without a pending retry. Other states have no counter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamCounts:
    """The upstreams of a node, counted by how they ended."""

    pending: int = 0
    succeeded: int = 0
    skipped: int = 0
    failed: int = 0

    @classmethod
    def of(cls, states: Iterable[TaskState | None]) -> UpstreamCounts:
        """Count upstreams from scratch; None stands for one that has not ended, such as a failed one with a pending
        retry.
        """
        tally = dict.fromkeys(("pending", *Counter), 0)
        for state in states:
            counter = None if state is None else COUNTERS.get(state)
            tally["pending" if counter is None else counter] += 1
        return cls(**tally)

    def after(self, state: TaskState) -> UpstreamCounts:
        """Count one more upstream that ended in this state."""
        counter = COUNTERS[state].value
        return replace(self, pending=self.pending - 1, **{counter: getattr(self, counter) + 1})


def release(rule: TriggerRule, counts: UpstreamCounts) -> Release:
    """Decide about a blocked node."""
    is_over = counts.pending == 0
    match rule:
        case TriggerRule.ALL_SUCCESS:
            if counts.failed:
                return Release.UPSTREAM_FAILED
            if not is_over:
                return Release.WAIT
            return Release.SKIP if counts.skipped else Release.RUN
        case TriggerRule.ALL_DONE:
            return Release.RUN if is_over else Release.WAIT
        case TriggerRule.ONE_SUCCESS:
            if counts.succeeded:
                return Release.RUN
            if not is_over:
                return Release.WAIT
            if counts.failed:
                return Release.UPSTREAM_FAILED
            return Release.SKIP if counts.skipped else Release.RUN
        case _:
            assert_never(rule)
