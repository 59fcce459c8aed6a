"""Inputs of nodes, built from their bindings when an attempt is claimed, not stored when the node is released.

So a fan-in of ten thousand nodes builds no payload in the transaction that completes it. The output of an upstream
never changes within a generation, and a node is released when all its upstreams have ended, so every attempt gets the
same input. With `one_success` it is released earlier: an attempt gets what has completed when it is claimed, and a
later attempt may get more. A binding that cannot be resolved fails the attempt with its own code; the run still ends.
Data that this version cannot read fails only the attempt that needs it.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.codec import json_codec
from holdfast.core.flows.bindings import resolve_input
from holdfast.core.flows.nodes import NodeKind
from holdfast.core.tasks.classify import RetryReason
from holdfast.core.tasks.failure import Failure, FailureReport
from holdfast.core.values import bounds
from holdfast.engine.leases import Claimed
from holdfast.engine.lifecycle.runs.outputs import (
    NOTHING_RETURNED,
    Returned,
    RunValues,
    read_outputs,
    read_runs,
    values_at_hand,
)
from holdfast.errors import Invalid
from holdfast.store.catalog import Catalog
from holdfast.store.database import Session
from holdfast.store.sql.flows import taskless_nodes as taskless_nodes_sql

log = logging.getLogger("holdfast.exchange")


async def with_inputs(
    session: Session, catalog: Catalog, claimed: Sequence[Claimed], returned: Returned = NOTHING_RETURNED
) -> list[Claimed]:
    """Return claimed nodes with their inputs; plain tasks have theirs. `returned` saves reading outputs settled just
    now.

    A node of a run that this version cannot read fails retriably, because another worker may be newer.
    """
    claimed = await readable(session, catalog, claimed)
    try:
        return await _given(session, catalog, claimed, returned)
    except Invalid as error:
        if len(claimed) == 1:
            log.error("the run of task %s cannot be read: %s", claimed[0].task_id, error)
            return [msgspec.structs.replace(claimed[0], input=b"{}", fault=_unreadable(error))]
    return [given for one in claimed for given in await with_inputs(session, catalog, [one], returned)]


async def readable(session: Session, catalog: Catalog, claimed: Sequence[Claimed]) -> Sequence[Claimed]:
    """Return the tasks whose policy this version can read. The others cannot be run correctly, so their leases
    expire."""
    if all(catalog.knows_policy(one.policy_id) for one in claimed):
        return claimed
    await catalog.learn((), {one.policy_id for one in claimed}, session=session)
    left = [one for one in claimed if catalog.is_unreadable(one.policy_id)]
    for one in left:
        log.error("task %s is not run here: its policy %s cannot be read", one.task_id, one.policy_id)
    return [one for one in claimed if not catalog.is_unreadable(one.policy_id)] if left else claimed


async def _given(session: Session, catalog: Catalog, claimed: Sequence[Claimed], returned: Returned) -> list[Claimed]:
    nodes: defaultdict[int, list[int]] = defaultdict(list)
    for one in claimed:
        if one.run_id is not None and one.node_no is not None:
            nodes[one.run_id].append(one.node_no)
    if not nodes:
        return list(claimed)
    mapped: Mapping[tuple[int, int], MappedNode] = {}
    runs = values_at_hand(catalog, nodes, returned)
    if runs is None:
        runs = await read_runs(session, catalog, nodes)
        await read_outputs(session, runs, [*_upstreams(runs, nodes)])
        mapped = await _mapped(session, runs, nodes)
    return _with_inputs(claimed, runs, mapped)


def _upstreams(runs: Mapping[int, RunValues], nodes: Mapping[int, Sequence[int]]) -> Iterator[tuple[int, int]]:
    """Yield the upstream nodes whose outputs these nodes read, each once."""
    for run_id, numbers in nodes.items():
        recipe = runs[run_id].plan.recipe
        for upstream in {upstream for node_no in numbers for upstream in recipe(node_no).upstreams}:
            yield run_id, upstream


async def node_input(
    session: Session, catalog: Catalog, run_id: int, node_no: int, item: int | None = None
) -> dict[str, Any] | None:
    """Return the input that the bindings of a node (or of one item) give now; None if it cannot be built yet."""
    runs = await read_runs(session, catalog, [run_id])
    values = runs[run_id]
    await read_outputs(session, runs, [(run_id, up) for up in values.plan.recipe(node_no).upstreams])
    given = _resolve(values, node_no)
    if isinstance(given, Failure):
        return None
    over = values.plan.nodes[node_no].map_over
    return given if item is None or over is None else {**given, over: given[over][item]}


Resolved = dict[str, Any] | Failure
"""The input of a node, or why it has none."""


class MappedNode(NamedTuple):
    """A node that maps over a list: the id of its first item, and the resolved input common to all items."""

    first_id: int
    over: str
    resolved: Resolved


async def _mapped(
    session: Session, runs: Mapping[int, RunValues], nodes: Mapping[int, Sequence[int]]
) -> dict[tuple[int, int], MappedNode]:
    """Return those of the nodes that have items. The input that all items share is resolved once."""
    asked = [
        (run_id, node_no)
        for run_id, numbers in nodes.items()
        if runs[run_id].plan.has_maps
        for node_no in set(numbers)
        if runs[run_id].plan.kinds[node_no] is NodeKind.MAP
    ]
    if not asked:
        return {}
    found = {}
    columns = ([run_id for run_id, _ in asked], [node_no for _, node_no in asked])
    for run_id, node_no, first_id in await taskless_nodes_sql.node_items(session, *columns):
        values = runs[run_id]
        over = values.plan.nodes[node_no].map_over or ""
        found[run_id, node_no] = MappedNode(first_id, over, _resolve(values, node_no))
    return found


def _resolve(values: RunValues, node_no: int) -> Resolved:
    plan = values.plan
    if (built := plan.recipe(node_no).build(values.input, values.outputs)) is not None:
        return built
    node = plan.nodes[node_no]
    try:
        return resolve_input(
            node, plan.incoming(node.name), run_input=values.input, outputs=values.outputs, absent=values.absent
        )
    except Invalid as error:
        return _fault(error)


def _with_inputs(
    claimed: Sequence[Claimed], runs: Mapping[int, RunValues], mapped: Mapping[tuple[int, int], MappedNode]
) -> list[Claimed]:
    """Build the inputs of a batch one by one and encode them together; if that fails, encode each alone."""
    nodes = [one for one in claimed if one.run_id is not None]
    given = [_resolved(one, runs, mapped) for one in nodes]
    if all(type(one) is dict for one in given):
        try:
            encoded = iter(json_codec.encode_many(given, bytes_max=bounds.NODE_INPUT_BYTES_MAX, what="input"))
        except Invalid:
            pass
        else:
            return [one if one.run_id is None else _given_to(one, runs[one.run_id], next(encoded)) for one in claimed]
    alone = iter(given)
    return [one if one.run_id is None else _with_input(one, runs[one.run_id], next(alone)) for one in claimed]


def _resolved(
    claimed: Claimed, runs: Mapping[int, RunValues], mapped: Mapping[tuple[int, int], MappedNode]
) -> Resolved:
    assert claimed.run_id is not None and claimed.node_no is not None
    values = runs[claimed.run_id]
    if not mapped or (items := mapped.get((claimed.run_id, claimed.node_no))) is None:
        return _resolve(values, claimed.node_no)
    if isinstance(given := items.resolved, dict):
        return {**given, items.over: given[items.over][claimed.task_id - items.first_id]}
    return given


def _with_input(claimed: Claimed, values: RunValues, given: Resolved) -> Claimed:
    if isinstance(given, dict):
        try:
            encoded = json_codec.encode(given, bytes_max=bounds.NODE_INPUT_BYTES_MAX, what="input")
            return _given_to(claimed, values, encoded)
        except Invalid as error:
            given = _fault(error)
    return msgspec.structs.replace(claimed, input=b"{}", tags=values.tags, fault=given)


def _given_to(claimed: Claimed, values: RunValues, encoded: bytes) -> Claimed:
    assert claimed.node_no is not None
    return claimed.given(encoded, values.tags, values.plan.downstream.count(claimed.node_no))


def _fault(error: Invalid) -> Failure:
    return Failure(code=error.code, type="Invalid", message=str(error), said=FailureReport.FATAL)


def _unreadable(error: Invalid) -> Failure:
    return Failure(
        code=RetryReason.WORKER_UNAVAILABLE, type="Invalid", message=f"This worker cannot read its run: {error}"
    )
