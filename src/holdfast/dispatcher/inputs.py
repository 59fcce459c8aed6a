"""Inputs of nodes: built from their bindings when an attempt is claimed, not stored when the node is released.

So a fan-in of ten thousand builds no payload in the transaction that completes it. What an upstream returned never
changes within a generation, so every attempt sees the same input. A binding that cannot be kept fails that attempt with
its own code; the run still ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import wire
from holdfast.core import limits
from holdfast.core.bindings import resolve_input
from holdfast.core.failure import Failure, Said
from holdfast.core.nodes import RUN_INPUT
from holdfast.core.plan import Plan
from holdfast.dispatcher.leases import Claimed
from holdfast.dispatcher.outputs import RunValues, read_values
from holdfast.errors import Invalid
from holdfast.store.catalog import Catalog
from holdfast.store.database import Session
from holdfast.store.statements import sql

_RUN_SNAPSHOTS = sql("run_snapshots")


async def with_inputs(session: Session, catalog: Catalog, claimed: Sequence[Claimed]) -> list[Claimed]:
    """Give claimed nodes their inputs; plain tasks have theirs."""
    run_ids = {one.run_id for one in claimed if one.run_id is not None}
    if not run_ids:
        return list(claimed)
    snapshots = {row[0]: row[1] for row in await session.fetch(_RUN_SNAPSHOTS, list(run_ids))}
    await catalog.flows.learn(snapshots.values(), session)
    plans = {run_id: catalog.flows.snapshot(one).plan for run_id, one in snapshots.items()}
    nodes = {(one.run_id, one.node_no) for one in claimed if one.run_id is not None and one.node_no is not None}
    asked = {(run_id, up) for run_id, node_no in nodes for up in _bound_upstreams(plans[run_id], node_no)}
    values = await read_values(session, plans, asked)
    return [one if one.run_id is None else _with_input(one, plans[one.run_id], values[one.run_id]) for one in claimed]


def _bound_upstreams(plan: Plan, node_no: int) -> list[int]:
    """The upstreams whose outputs a node's input or condition reads."""
    node = plan.nodes[node_no]
    names = {edge.upstream for edge in plan.incoming[node.name] if edge.bindings}
    if node.condition is not None:
        names.add(node.condition.upstream)
    return [plan.number[name] for name in names if name != RUN_INPUT]


def _with_input(claimed: Claimed, plan: Plan, values: RunValues) -> Claimed:
    assert claimed.node_no is not None
    node = plan.nodes[claimed.node_no]
    try:
        given = resolve_input(
            node, plan.incoming[node.name], run_input=values.input, outputs=values.outputs, absent=values.absent
        )
        encoded = wire.encode(given, bytes_max=limits.NODE_INPUT_BYTES_MAX, what="input")
    except Invalid as error:
        failure = Failure(code=error.code, type="Invalid", message=str(error), said=Said.FATAL)
        return msgspec.structs.replace(claimed, input=b"{}", tags=values.tags, fault=failure)
    return msgspec.structs.replace(claimed, input=encoded, tags=values.tags)
