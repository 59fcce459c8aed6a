"""Conditions of nodes, evaluated once, on the outputs that exist when the node is released."""

from __future__ import annotations

from holdfast.core.flows.bindings import condition_holds
from holdfast.engine.lifecycle.runs.locked_run import LockedRun
from holdfast.engine.lifecycle.runs.outputs import values_of
from holdfast.errors import Invalid
from holdfast.store.catalog import Catalog
from holdfast.store.database import Session


async def fails_condition(session: Session, catalog: Catalog, run: LockedRun, node_no: int) -> bool:
    """Return whether a released node has a condition that is not met."""
    plan = run.snapshot.plan
    node = plan.nodes[node_no]
    if node.condition is None:
        return False
    looked_at = plan.number.get(node.condition.upstream)
    values = await values_of(session, catalog, run.row.run_id, [] if looked_at is None else [looked_at])
    try:
        return not condition_holds(node, run_input=values.input, outputs=values.outputs, absent=values.absent)
    except Invalid:
        # Values that cannot be compared fail the node: it starts, and its attempt reports the error.
        return False
