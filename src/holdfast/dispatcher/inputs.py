"""Inputs of nodes: built from their bindings when an attempt is claimed, not stored when the node is released.

So a fan-in of ten thousand builds no payload in the transaction that completes it. What an upstream returned never
changes within a generation, so every attempt sees the same input. A binding that cannot be kept fails that attempt with
its own code; the run still ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast import wire
from holdfast.core import limits
from holdfast.core.bindings import resolve_input
from holdfast.core.failure import Failure, Said
from holdfast.core.nodes import NodeKind
from holdfast.core.plan import Plan
from holdfast.dispatcher.leases import Claimed
from holdfast.dispatcher.outputs import RunValues, bound_upstreams, read_values
from holdfast.errors import Invalid
from holdfast.store.catalog import Catalog
from holdfast.store.database import Session
from holdfast.store.statements import sql

_RUN_SNAPSHOTS = sql("run_snapshots")
_NODE_ITEMS = sql("node_items")


async def with_inputs(session: Session, catalog: Catalog, claimed: Sequence[Claimed]) -> list[Claimed]:
    """Give claimed nodes their inputs; plain tasks have theirs."""
    nodes = {(one.run_id, one.node_no) for one in claimed if one.run_id is not None and one.node_no is not None}
    if not nodes:
        return list(claimed)
    run_ids = list({run_id for run_id, _ in nodes})
    snapshots = {row[0]: row[1] for row in await session.fetch(_RUN_SNAPSHOTS, run_ids)}
    await catalog.flows.learn(snapshots.values(), session)
    plans = {run_id: catalog.flows.snapshot(one).plan for run_id, one in snapshots.items()}
    asked = {(run_id, up) for run_id, node_no in nodes for up in bound_upstreams(plans[run_id], node_no)}
    values = await read_values(session, plans, asked)
    firsts = await _items(session, plans, nodes)
    resolved = {node: _resolve(plans[node[0]], node[1], values[node[0]]) for node in nodes}
    return [
        one if one.run_id is None else _with_input(one, plans[one.run_id], values[one.run_id], resolved, firsts)
        for one in claimed
    ]


Resolved = dict[str, Any] | Failure
"""A node's input, or why it has none."""


async def _items(
    session: Session, plans: Mapping[int, Plan], nodes: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], int]:
    """Where the items of those nodes begin that have any."""
    mapped = [(run_id, node_no) for run_id, node_no in nodes if plans[run_id].nodes[node_no].kind is NodeKind.MAP]
    if not mapped:
        return {}
    columns = ([run_id for run_id, _ in mapped], [node_no for _, node_no in mapped])
    return {(row[0], row[1]): row[2] for row in await session.fetch(_NODE_ITEMS, *columns)}


def _resolve(plan: Plan, node_no: int, values: RunValues) -> Resolved:
    node = plan.nodes[node_no]
    try:
        return resolve_input(
            node, plan.incoming[node.name], run_input=values.input, outputs=values.outputs, absent=values.absent
        )
    except Invalid as error:
        return _fault(error)


def _with_input(
    claimed: Claimed,
    plan: Plan,
    values: RunValues,
    resolved: Mapping[tuple[int, int], Resolved],
    firsts: Mapping[tuple[int, int], int],
) -> Claimed:
    assert claimed.run_id is not None and claimed.node_no is not None
    place = (claimed.run_id, claimed.node_no)
    given = resolved[place]
    if isinstance(given, Failure):
        return msgspec.structs.replace(claimed, input=b"{}", tags=values.tags, fault=given)
    if place in firsts:
        over = plan.nodes[claimed.node_no].map_over or ""
        given = {**given, over: given[over][claimed.task_id - firsts[place]]}
    try:
        encoded = wire.encode(given, bytes_max=limits.NODE_INPUT_BYTES_MAX, what="input")
    except Invalid as error:
        return msgspec.structs.replace(claimed, input=b"{}", tags=values.tags, fault=_fault(error))
    return msgspec.structs.replace(claimed, input=encoded, tags=values.tags)


def _fault(error: Invalid) -> Failure:
    return Failure(code=error.code, type="Invalid", message=str(error), said=Said.FATAL)
