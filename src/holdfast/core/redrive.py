"""What a re-drive resets: the roots and everything downstream of them, also what completed.

Roots are the nodes that failed for good and those blocked by a failure, or the one node somebody named. What is still
under way (queued, running, retrying) is left alone, and so is what was canceled: neither can go back to blocked.
A node's counters start anew: upstreams inside the set are pending again, those outside count as they ended. What may
go at once follows from the counters by the ordinary rule, so a re-drive starts nothing by a path of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from holdfast.core.graph import FlowDefinition, Graph
from holdfast.core.nodes import Node
from holdfast.core.release import Release, UpstreamCounts, release
from holdfast.core.states import REDRIVE_TRANSITIONS, TaskState
from holdfast.errors import Conflict, NotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """One node of the next generation: blocked, with these counters, and what they decide."""

    node: str
    counts: UpstreamCounts
    release: Release


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrive:
    """Everything to reset, in topological order. Without roots there is nothing to re-drive."""

    roots: tuple[str, ...] = ()
    resets: tuple[Reset, ...] = ()


def redrive(
    definition: FlowDefinition,
    states: Mapping[str, TaskState],
    *,
    retrying: Collection[str] = (),
    only: str | None = None,
) -> Redrive:
    """Plan the re-drive of a run. `states` gives every node; names that the definition lost are ignored.

    `retrying` names the failed nodes whose retry still waits. `only` retries one node and what is downstream of it:
    `NotFound` if there is none such, `Conflict` unless it is over, not canceled, and its upstreams let it run.
    """
    graph = definition.graph()
    roots = _failed(graph, states, retrying) if only is None else (_named(graph, states, retrying, only),)
    found = _resettable_from(roots, graph, states, retrying)
    nodes = {node.name: node for node in definition.nodes}
    resets = tuple(_reset(nodes[name], graph, states, retrying, found) for name in graph.order if name in found)
    if only is not None:
        _refuse_unreleasable(only, resets)
    return Redrive(roots=roots, resets=resets)


def _failed(graph: Graph, states: Mapping[str, TaskState], retrying: Collection[str]) -> tuple[str, ...]:
    by_failure = (TaskState.FAILED, TaskState.UPSTREAM_FAILED)
    return tuple(name for name in graph.order if states.get(name) in by_failure and name not in retrying)


def _named(graph: Graph, states: Mapping[str, TaskState], retrying: Collection[str], name: str) -> str:
    if name not in graph.number or name not in states:
        raise NotFound(f"The run has no node {name}.", code="DAG_VALIDATION_NODE_NOT_FOUND", node=name)
    state = states[name]
    if state not in REDRIVE_TRANSITIONS or name in retrying:
        raise _not_retryable(name, f"it is {'retrying' if name in retrying else state}")
    return name


def _resettable_from(
    roots: Collection[str], graph: Graph, states: Mapping[str, TaskState], retrying: Collection[str]
) -> frozenset[str]:
    """Walk downstream through what can be reset; nothing lies behind a node that keeps its end or its attempt."""
    found = set(roots)
    pending = list(roots)
    while pending:
        for name in graph.downstream[pending.pop()]:
            if name not in found and _can_reset(name, states, retrying):
                found.add(name)
                pending.append(name)
    return frozenset(found)


def _can_reset(name: str, states: Mapping[str, TaskState], retrying: Collection[str]) -> bool:
    state = states.get(name)
    is_idle = state is TaskState.BLOCKED or state in REDRIVE_TRANSITIONS
    return is_idle and name not in retrying


def _reset(
    node: Node, graph: Graph, states: Mapping[str, TaskState], retrying: Collection[str], found: Collection[str]
) -> Reset:
    counts = UpstreamCounts.of(
        None if one in found or one in retrying else states.get(one) for one in graph.upstream[node.name]
    )
    return Reset(node=node.name, counts=counts, release=release(node.trigger_rule, counts))


def _refuse_unreleasable(name: str, resets: tuple[Reset, ...]) -> None:
    mine = next(reset for reset in resets if reset.node == name)
    if mine.release is not Release.RUN:
        raise _not_retryable(name, f"its upstreams say {mine.release}: retry what failed before it")


def _not_retryable(name: str, why: str) -> Conflict:
    return Conflict(
        f"Node {name} cannot be retried: {why}.",
        code="DAG_STATE_TRANSITION_NODE_NOT_RETRYABLE",
        advice="Wait until it is over, or retry the whole run.",
        node=name,
    )
