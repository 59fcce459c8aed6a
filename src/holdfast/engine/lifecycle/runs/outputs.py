"""Decoded outputs of completed nodes, with the inputs of their runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.codec import json_codec
from holdfast.core.flows.nodes import NodeKind
from holdfast.core.flows.plan import Plan
from holdfast.core.tasks.outcome import Completed
from holdfast.engine.leases import Report, Settled
from holdfast.store.catalog import Catalog
from holdfast.store.database import Session
from holdfast.store.run_inputs import Started
from holdfast.store.sql.flows import runs as runs_sql

_FIRST_GENERATION = 1


Returned = Mapping[int, bytes]
"""Outputs of tasks that were settled in this exchange, by task id."""
NOTHING_RETURNED: Returned = {}


class RunValues(msgspec.Struct):
    """The values that bindings of one run may read. Requested nodes that have not completed are in `absent`."""

    plan: Plan
    generation: int
    input: dict[str, Any]
    tags: list[str] | None
    outputs: dict[str, Any]
    absent: set[str]


def returned_now(reports: Sequence[Report], settled: Settled) -> Returned:
    """Return the outputs of a settled batch. Reports that the fence refused, or that commit datasets and so may be
    recorded as failed, are left out."""
    refused = {one.task_id for one in settled.refused}
    return {
        one.task_id: one.outcome.output
        for one in reports
        if type(one.outcome) is Completed and not one.outcome.commits and one.task_id not in refused
    }


def values_at_hand(
    catalog: Catalog, nodes: Mapping[int, Sequence[int]], returned: Returned
) -> dict[int, RunValues] | None:
    """Return the values that these nodes read, by run, if this process has all of them; else None.

    It has them if it has loaded the runs before and has just settled all upstream nodes. The next node of a chain then
    starts without a query.
    """
    runs: dict[int, RunValues] = {}
    for run_id, numbers in nodes.items():
        if (started := catalog.started.get(run_id)) is None:
            return None
        values = runs[run_id] = _values_of(catalog, started, _FIRST_GENERATION)
        plan, outputs = values.plan, values.outputs
        if plan.has_maps and any(plan.kinds[node_no] is NodeKind.MAP for node_no in numbers):
            return None
        for upstream in {upstream for node_no in numbers for upstream in plan.recipe(node_no).upstreams}:
            if (output := returned.get(run_id + 1 + upstream)) is None:
                return None
            outputs[plan.names[upstream]] = json_codec.decode(output)
    return runs


def _values_of(catalog: Catalog, started: Started, generation: int) -> RunValues:
    plan = catalog.flows.snapshot(started.snapshot_id).plan
    return RunValues(plan, generation, started.input, started.tags, {}, set())


async def values_of(session: Session, catalog: Catalog, run_id: int, upstreams: Iterable[int] = ()) -> RunValues:
    """Read the values of one run, with the outputs of some of its nodes."""
    runs = await read_runs(session, catalog, [run_id])
    await read_outputs(session, runs, [(run_id, node_no) for node_no in upstreams])
    return runs[run_id]


async def read_runs(session: Session, catalog: Catalog, run_ids: Iterable[int]) -> dict[int, RunValues]:
    """Read the inputs of runs, and load the flow snapshots that they execute."""
    rows = await runs_sql.read_runs(session, list(run_ids))
    await catalog.flows.learn({row.snapshot_id for row in rows}, session)
    found = {}
    for run_id, snapshot_id, generation, encoded, tags in rows:
        started = Started(snapshot_id, json_codec.decode(encoded), tags)
        catalog.started.keep(run_id, started, size=len(encoded))
        found[run_id] = _values_of(catalog, started, generation)
    return found


async def read_outputs(session: Session, runs: Mapping[int, RunValues], asked: Collection[tuple[int, int]]) -> None:
    """Add the outputs of nodes, each requested once as (run, node number), to the values of their runs."""
    tasks: dict[int, tuple[int, int]] = {}
    special = []
    for node in asked:
        run_id, node_no = node
        if runs[run_id].plan.is_task[node_no]:
            tasks[run_id + 1 + node_no] = node
        else:
            special.append(node)
    found = 0
    if tasks:
        generations = await _generations(session, runs, tasks.values())
        for task_id, generation, output in await runs_sql.read_outputs(session, list(tasks)):
            node = tasks[task_id]
            if generation == generations.get(node, _FIRST_GENERATION):
                _keep(runs[node[0]], node[1], output)
                found += 1
    if special:
        for run_id, node_no, own, items in await runs_sql.read_taskless_outputs(session, *_columns(special)):
            gathered = own if items is None else b"[" + b",".join(item or b"null" for item in items) + b"]"
            assert gathered is not None, "a node without items has its own output"
            _keep(runs[run_id], node_no, gathered)
            found += 1
    if found < len(asked):
        for run_id, node_no in asked:
            values = runs[run_id]
            if (name := values.plan.names[node_no]) not in values.outputs:
                values.absent.add(name)


async def _generations(
    session: Session, runs: Mapping[int, RunValues], nodes: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], int]:
    """Return the current generation of nodes where it is not the first: only nodes of re-driven runs can have
    another."""
    redriven = [node for node in nodes if runs[node[0]].generation > _FIRST_GENERATION]
    if not redriven:
        return {}
    rows = await runs_sql.read_nodes(session, *_columns(redriven))
    return {(row.run_id, row.node_no): row.generation for row in rows}


def _keep(values: RunValues, node_no: int, encoded: bytes | None) -> None:
    values.outputs[values.plan.names[node_no]] = json_codec.decode(encoded or b"null")


def _columns(nodes: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    run_ids, numbers = zip(*nodes, strict=True)
    return list(run_ids), list(numbers)


async def warm_outputs(session: Session) -> None:
    """Prepare the statements by reading nothing."""
    await runs_sql.read_runs(session, [])
    await runs_sql.read_outputs(session, [])
