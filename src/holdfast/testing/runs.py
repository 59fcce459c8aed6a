"""Runs of flows for tests, one step at a time, as `harness.runs`. There is no logic here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.codec import json_codec
from holdfast.core.flows.bindings import accept_run_input
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import NodeKind
from holdfast.core.tasks.action_rules import ActionRules
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.core.tasks.states import ENDS
from holdfast.engine.lifecycle.runs import commands as run_commands
from holdfast.engine.lifecycle.runs import pause
from holdfast.engine.lifecycle.runs.children import answer_once, retry_children_once, run_output
from holdfast.engine.lifecycle.runs.items import release_stalled_items_once
from holdfast.engine.lifecycle.runs.signals import deliver_once, expire_waits_once
from holdfast.engine.lifecycle.runs.start import RunOptions, snapshot_of, start_runs
from holdfast.engine.publish import publish_and_propagate
from holdfast.engine.use_cases import runs as run_use_cases
from holdfast.store.flow_definitions import FlowSnapshot
from holdfast.store.sql.flows import run_commands as run_commands_sql
from holdfast.store.sql.flows import runs as runs_sql

if TYPE_CHECKING:
    from holdfast.testing.engine_harness import EngineHarness

BYTES_MAX = 8 * 1024 * 1024


class Runs:
    """The runs of one engine. Every node runs under `policy`, which has no retries by default."""

    def __init__(self, harness: EngineHarness) -> None:
        self._open_maintenance = harness
        self._engine = harness.engine
        self.policy = RetryPolicy(max_retries=0)
        self._snapshots: dict[str, FlowSnapshot] = {}

    async def snapshot(self, flow: FlowDefinition) -> FlowSnapshot:
        """Store a flow; the flows that its nodes run must be stored before."""
        tasks = {node.action for node in flow.nodes if node.kind in (NodeKind.TASK, NodeKind.MAP)}
        self._open_maintenance.know(*tasks)
        rules = {name: ActionRules(queue="default", priority=5, policy=self.policy) for name in tasks}
        kept = await snapshot_of(self._engine.catalog, self._engine.tenant_id, flow.validated(), rules, self._snapshots)
        self._snapshots[flow.name] = kept
        return kept

    async def start(self, flow: FlowDefinition, input_values: Mapping[str, Any] | None = None, **options: Any) -> str:
        """Start one run."""
        return (await self.start_many(flow, [input_values or {}], **options))[0]

    async def start_many(self, flow: FlowDefinition, inputs: list[Mapping[str, Any]], **options: Any) -> list[str]:
        """Start one run per input."""
        snapshot = await self.snapshot(flow)
        encoded = [
            json_codec.encode(accept_run_input(flow.inputs, run_input), bytes_max=BYTES_MAX, what="input")
            for run_input in inputs
        ]
        async with self._engine.database.transaction() as session:
            run_ids, notifications = await start_runs(
                session, self._engine.catalog, snapshot, encoded, RunOptions(**options)
            )
        await publish_and_propagate(self._engine, notifications)
        return [str(run_id) for run_id in run_ids]

    async def nodes(self, run_id: str) -> dict[str, str]:
        """Return the state of each node."""
        return {name: row.state for name, row in (await self._rows(run_id)).items()}

    async def attempts(self, run_id: str) -> dict[str, int]:
        """Return how many attempts each node had."""
        return {name: row.attempt for name, row in (await self._rows(run_id)).items()}

    async def state(self, run_id: str) -> str:
        """Return `open`, `completed`, `failed` or `canceled`."""
        row = await runs_sql.lock_run(self._engine.database, int(run_id), self._engine.tenant_id)
        assert row is not None, f"there is no run {run_id}"
        return ENDS.get(row.state, "open")

    async def output(self, run_id: str) -> Any:
        """Return the output of the flow from the outputs stored so far."""
        async with self._engine.database.session() as session:
            row = await runs_sql.run_snapshots(session, [int(run_id)], self._engine.tenant_id)
            assert row is not None, f"there is no run {run_id}"
            return await run_output(session, self._engine.catalog, int(run_id), row.snapshot_id)

    def task_id(self, run_id: str, flow: FlowDefinition, node: str) -> str:
        """Return the id of the task that is this node."""
        return str(int(run_id) + 1 + flow.graph().number[node])

    async def retry(self, run_id: str, *, only: str | None = None, reason: str = "", actor: str = "test") -> list[str]:
        """Run again what failed, or one node; return the nodes that were reset."""
        done = await run_use_cases.retry_run(self._engine, int(run_id), actor=actor, reason=reason, only=only)
        return done.reset

    async def cancel(self, run_id: str, *, reason: str = "", actor: str = "test", grace_seconds: float = 10.0) -> None:
        """Cancel a run."""
        await run_use_cases.cancel_run(
            self._engine, int(run_id), actor=actor, reason=reason, grace_seconds=grace_seconds
        )

    async def pause(self, run_id: str, *, reason: str = "", actor: str = "test") -> None:
        """Pause a run: no more nodes are released."""
        await run_use_cases.pause_run(self._engine, int(run_id), actor=actor, reason=reason)

    async def resume(self, run_id: str, *, reason: str = "", actor: str = "test") -> None:
        """Resume a paused run."""
        await run_use_cases.resume_run(self._engine, int(run_id), actor=actor, reason=reason)

    async def signal(self, name: str, payload: Any = None, *, run_id: str | None = None, actor: str = "test") -> None:
        """Send an event to runs."""
        number = None if run_id is None else int(run_id)
        await run_use_cases.send_signal(self._engine, name, payload, run_id=number, actor=actor)

    async def answer(
        self, run_id: str, node: str, *, is_given: bool = True, reason: str = "", actor: str = "test"
    ) -> None:
        """Approve or reject a node."""
        await run_use_cases.answer_approval(
            self._engine, int(run_id), node, is_given=is_given, actor=actor, reason=reason
        )

    async def repair_once(self, *, grace_seconds: float = 10.0) -> None:
        """Run one pass of the maintenance loops for runs."""
        database, catalog = self._engine.database, self._engine.catalog
        notifications = await answer_once(database, catalog)
        notifications = notifications.and_(await retry_children_once(database, catalog))
        notifications = notifications.and_((await deliver_once(database, catalog)).notifications)
        notifications = notifications.and_(await expire_waits_once(database, catalog))
        notifications = notifications.and_(
            await run_commands.finish_cancels_once(database, catalog, grace_seconds=grace_seconds)
        )
        await pause.hold_children_once(database)
        notifications = notifications.and_(await pause.free_children_once(database, catalog))
        notifications = notifications.and_(await release_stalled_items_once(database, catalog))
        await publish_and_propagate(self._engine, notifications)

    async def _rows(self, run_id: str) -> dict[str, Any]:
        async with self._engine.database.session() as session:
            row = await runs_sql.run_snapshots(session, [int(run_id)], self._engine.tenant_id)
            assert row is not None, f"there is no run {run_id}"
            await self._engine.catalog.flows.learn([row.snapshot_id], session)
            nodes = self._engine.catalog.flows.snapshot(row.snapshot_id).plan.nodes
            rows = await run_commands_sql.node_states(session, int(run_id), self._engine.tenant_id)
        return {nodes[row.node_no].name: row for row in rows}
