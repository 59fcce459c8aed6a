"""Outputs: what completed nodes of runs returned, decoded, with the inputs of those runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast import wire
from holdfast.core.nodes import RUN_INPUT
from holdfast.core.plan import Plan
from holdfast.store.database import Session
from holdfast.store.statements import sql

_READ_RUN_INPUTS = sql("read_run_inputs")
_READ_OUTPUTS = sql("read_outputs")


class RunValues(msgspec.Struct):
    """What bindings of one run may read. Nodes that were asked for and did not complete are absent."""

    input: dict[str, Any]
    tags: list[str] | None
    outputs: dict[str, Any]
    absent: set[str]


def bound_upstreams(plan: Plan, node_no: int) -> list[int]:
    """The upstreams whose outputs a node's input or condition reads."""
    node = plan.nodes[node_no]
    names = {edge.upstream for edge in plan.incoming[node.name] if edge.bindings}
    if node.condition is not None:
        names.add(node.condition.upstream)
    return [plan.number[name] for name in names if name != RUN_INPUT]


async def read_values(
    session: Session, plans: Mapping[int, Plan], asked: Iterable[tuple[int, int]]
) -> dict[int, RunValues]:
    """Read the inputs of runs, and the outputs of nodes asked for as (run, node number)."""
    values = {
        row["run_id"]: RunValues(wire.decode(row["input"]), row["tags"], {}, set())
        for row in await session.fetch(_READ_RUN_INPUTS, list(plans))
    }
    missing = set(asked)
    if not missing:
        return values
    pairs = sorted(missing)
    rows = await session.fetch(_READ_OUTPUTS, [run_id for run_id, _ in pairs], [node_no for _, node_no in pairs])
    for run_id, node_no, output, items in rows:
        encoded = output if items is None else b"[" + b",".join(one or b"null" for one in items) + b"]"
        values[run_id].outputs[plans[run_id].nodes[node_no].name] = wire.decode(encoded or b"null")
        missing.discard((run_id, node_no))
    for run_id, node_no in missing:
        values[run_id].absent.add(plans[run_id].nodes[node_no].name)
    return values
