"""Planning of a re-drive: the nodes that it resets.

It resets the roots and all nodes downstream of them, including completed ones. Roots are the nodes that failed for good
and those blocked by a failure that no longer exists, or the one node that the caller named. Nodes in progress (queued,
running, retrying) are left alone, and so are canceled nodes and the nodes that wait for them: neither can return to
blocked.

A root continues with what it has (items, a run that it started) only if none of its upstreams is reset, because after
another root it may get another input.

The counters of a reset node start again: upstreams inside the set are pending again, those outside count as they ended.
Which nodes start at once follows from the counters by the ordinary rule, so a re-drive has no separate start path.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.release import Release, UpstreamCounts, release
from holdfast.core.tasks.states import REDRIVE_TRANSITIONS, TaskState
from holdfast.errors import Conflict, NotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """One node of the next generation: blocked, with these counters and the decision that they imply."""

    node: str
    counts: UpstreamCounts
    release: Release


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrive:
    """All nodes to reset, in topological order. Without roots there is nothing to re-drive.

    `unmoved` are the roots with no reset upstream: they get the same input again.
    """

    roots: tuple[str, ...] = ()
    unmoved: frozenset[str] = frozenset()
    resets: tuple[Reset, ...] = ()


def redrive(
    definition: FlowDefinition,
    states: Mapping[str, TaskState],
    *,
    retrying: Collection[str] = (),
    only: str | None = None,
) -> Redrive:
    """Plan the re-drive of a run. `states` has every node; names that the definition no longer has are ignored.

    `retrying` names the failed nodes whose retry is pending. `only` retries one node and everything downstream of it.
    Raises `NotFound` if there is no such node, and `Conflict` unless it has ended, is not canceled, its upstreams let
    it run, and no node in progress uses its output.
    """
    plan = _Plan(definition, states, retrying)
    if only is None:
        plan.take_failed()
    else:
        plan.take_named(only)
    return plan.finished()


_UNDER_WAY = frozenset({TaskState.QUEUED, TaskState.RUNNING})


class _Plan:
    """A re-drive set under construction."""

    __slots__ = ("_found", "_graph", "_nodes", "_retrying", "_roots", "_states")

    def __init__(self, definition: FlowDefinition, states: Mapping[str, TaskState], retrying: Collection[str]) -> None:
        self._graph = definition.graph()
        self._nodes = {node.name: node for node in definition.nodes}
        self._states = states
        self._retrying = frozenset(retrying)
        self._roots: list[str] = []
        self._found: set[str] = set()

    def take_failed(self) -> None:
        ended = {name: state for name, state in self._states.items() if name not in self._retrying}
        for name in self._graph.order:
            if ended.get(name) is TaskState.FAILED:
                self._take(name)
        for name in self._graph.order:
            is_stranded = ended.get(name) is TaskState.UPSTREAM_FAILED and name not in self._found
            if is_stranded and self._reset(name).release is not Release.UPSTREAM_FAILED:
                self._take(name)

    def take_named(self, name: str) -> None:
        state = self._states.get(name)
        if name not in self._nodes or state is None:
            raise NotFound(f"The run has no node {name}.", code="DAG_VALIDATION_NODE_NOT_FOUND", node=name)
        if state not in REDRIVE_TRANSITIONS or name in self._retrying:
            raise _not_retryable(name, f"it is {'retrying' if name in self._retrying else state}")
        decided = self._reset(name).release
        if decided is not Release.RUN:
            raise _not_retryable(name, f"its upstream nodes decide {decided}")
        self._take(name)
        if state is TaskState.COMPLETED and (user := self._under_way_behind()) is not None:
            raise _not_retryable(name, f"its output is in use: {user} is active")

    def finished(self) -> Redrive:
        resets = tuple(self._reset(name) for name in self._graph.order if name in self._found)
        unmoved = frozenset(root for root in self._roots if self._found.isdisjoint(self._graph.upstream[root]))
        return Redrive(roots=tuple(self._roots), unmoved=unmoved, resets=resets)

    def _take(self, root: str) -> None:
        """Add a root and walk downstream, stopping at nodes that keep their end or their attempt."""
        self._roots.append(root)
        self._found.add(root)
        pending = [root]
        while pending:
            for name in self._graph.downstream[pending.pop()]:
                if name not in self._found and self._can_reset(name):
                    self._found.add(name)
                    pending.append(name)

    def _under_way_behind(self) -> str | None:
        """Return a node in progress that uses an output of the set."""
        behind = (
            name
            for upstream in self._graph.order
            if upstream in self._found
            for name in self._graph.downstream[upstream]
        )
        return next((name for name in behind if self._states.get(name) in _UNDER_WAY or name in self._retrying), None)

    def _can_reset(self, name: str) -> bool:
        state = self._states.get(name)
        is_idle = state is TaskState.BLOCKED or state in REDRIVE_TRANSITIONS
        return is_idle and name not in self._retrying

    def _reset(self, name: str) -> Reset:
        counts = UpstreamCounts.of(
            None if upstream in self._found or upstream in self._retrying else self._states.get(upstream)
            for upstream in self._graph.upstream[name]
        )
        return Reset(node=name, counts=counts, release=release(self._nodes[name].trigger_rule, counts))


def _not_retryable(name: str, why: str) -> Conflict:
    return Conflict(
        f"Node {name} cannot be retried alone: {why}.",
        code="DAG_STATE_TRANSITION_NODE_NOT_RETRYABLE",
        advice="Wait until it ends, or retry the node that failed upstream.",
        node=name,
    )
