"""Client interface of runs: start them, wait for them, inspect and control them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.authoring.flow.flow import BoundFlow
from holdfast.client.flow_requests import FlowIntake
from holdfast.client.run_events import RunEvent, run_events
from holdfast.codec import json_codec
from holdfast.core.explain.task import Explanation
from holdfast.core.flows.bindings import accept_run_input
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.values import bounds
from holdfast.core.values.bounds import no_run
from holdfast.engine.lifecycle.runs import commands as run_commands
from holdfast.engine.lifecycle.runs import pause
from holdfast.engine.lifecycle.runs.approvals import answer_approval
from holdfast.engine.lifecycle.runs.children import run_output
from holdfast.engine.lifecycle.runs.start import RunOptions, start, start_within
from holdfast.engine.publish import publish_and_propagate
from holdfast.engine.queries.events import START
from holdfast.engine.queries.explain_run import why_node, why_run
from holdfast.engine.queries.runs import RunView, show_run
from holdfast.errors import Invalid, NotFound, TaskFailed
from holdfast.store.database import Session
from holdfast.store.flow_definitions import FlowSnapshot
from holdfast.store.statements import sql

if TYPE_CHECKING:
    from holdfast.client.client import Client


def options_of(flow: object) -> RunOptions:
    """Return the start options that a flow is bound to, or the defaults."""
    if not isinstance(flow, BoundFlow):
        return RunOptions()
    return RunOptions(max_active=flow.concurrency, priority=flow.priority, tags=flow.tags, key=flow.key)


_RUN_SNAPSHOTS = sql("run_snapshots")
_NODE_STATES = sql("node_states")
_READ_FOR_COPY = sql("read_run_for_copy")


class RunTask(msgspec.Struct, frozen=True, kw_only=True):
    """One node of a run and the state of its task."""

    node: str
    task_id: str
    state: str
    attempt: int


class Run:
    """A handle on one run."""

    __slots__ = ("_client", "_number")

    def __init__(self, client: Client, number: int) -> None:
        self._client = client
        self._number = number

    @property
    def run_id(self) -> str:
        return str(self._number)

    def __repr__(self) -> str:
        return f"Run({self.run_id!r})"

    async def wait(self, timeout: str | float | None = None) -> str:
        """Wait for the end; return `completed`, `failed` or `canceled`."""
        try:
            return (await self._client.ending(self.run_id, timeout=timeout)).state
        except NotFound:
            raise no_run(self.run_id) from None

    async def result(self, timeout: str | float | None = None) -> Any:
        """Wait for the output of the flow. Raises `TaskFailed` unless the run completed."""
        state = await self.wait(timeout)
        if state != "completed":
            raise TaskFailed(
                f"Run {self.run_id} {await self._failed() if state == 'failed' else 'was canceled'}.",
                code="run_failed" if state == "failed" else "run_canceled",
                advice=f"See `holdfast run show {self.run_id}`.",
                state=state,
            )
        return await self.output()

    async def _failed(self) -> str:
        """Describe which node failed first, and why."""
        failed = [node for node in (await self.show()).tasks if node.state == "failed"]
        if not failed:
            return "failed"
        first = min(failed, key=lambda node: (node.ended_at is None, node.ended_at))
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        return f"failed: node {first.node} (task {first.task_id}): {first.error or 'no error on record'}{more}"

    async def state(self) -> str:
        """Return the current state: `queued`, `running`, `blocked`, `completed`, `failed`, `canceled` …"""
        return (await self.show()).state

    async def output(self) -> Any:
        """Return the flow's output as far as it is available; None for nodes that did not complete."""
        engine = self._client.engine
        async with engine.database.session() as session:
            row = await session.fetchrow(_RUN_SNAPSHOTS, [self._number], engine.tenant_id)
            if row is None:
                raise no_run(self.run_id)
            return await run_output(session, engine.catalog, self._number, row["snapshot_id"])

    def events(self, after: str = START) -> AsyncIterator[RunEvent]:
        """Yield events of the run and its nodes, from the beginning or after a cursor, until it is over.

        Each event has the cursor that resumes after it: a resumed stream loses nothing and repeats nothing.
        """
        return run_events(self._client.engine, self._number, after)

    async def show(self) -> RunView:
        """Return the run in full, with all its nodes."""
        engine = self._client.engine
        return await show_run(engine.database, engine.catalog, engine.tenant_id, self._number)

    async def why(self, node: str | None = None) -> Explanation:
        """Explain why the run, or one of its nodes, is in its state and what would move it."""
        engine = self._client.engine
        which, silent = (engine.database, engine.catalog, engine.tenant_id, self._number), engine.silent_seconds
        if node is None:
            return await why_run(*which, silent_seconds=silent)
        return await why_node(*which, node, silent_seconds=silent)

    async def clone(self, /, **changed: Any) -> Run:
        """Start a copy, linked to this run: the same snapshot of the flow, and the same input except for `changed`."""
        return await copy_run(self._client, self._number, changed)

    async def tasks(self) -> list[RunTask]:
        """List every node of the run, in the order of the flow, with the state of its task."""
        engine = self._client.engine
        async with engine.database.session() as session:
            row = await session.fetchrow(_RUN_SNAPSHOTS, [self._number], engine.tenant_id)
            if row is None:
                raise no_run(self.run_id)
            await engine.catalog.flows.learn([row["snapshot_id"]], session)
            nodes = engine.catalog.flows.snapshot(row["snapshot_id"]).plan.nodes
            rows = await session.fetch(_NODE_STATES, self._number, engine.tenant_id)
        return [
            RunTask(
                node=nodes[row["node_no"]].name,
                task_id=str(self._number + 1 + row["node_no"]),
                state=row["state"],
                attempt=row["attempt"],
            )
            for row in rows
        ]

    async def cancel(self, reason: str = "", *, actor: str = "client") -> None:
        """Cancel the run: no node starts any more, waiting ones end, running ones are asked to stop."""
        engine = self._client.engine
        grace = engine.settings.worker.cancel_grace_seconds
        who = {"actor": actor, "reason": reason, "grace_seconds": grace}
        done = await run_commands.cancel_run(engine.database, engine.catalog, engine.tenant_id, self._number, **who)  # type: ignore[arg-type]
        await publish_and_propagate(engine, done)

    async def pause(self, reason: str = "", *, actor: str = "client") -> None:
        """Release no more nodes until `resume`."""
        engine = self._client.engine
        await pause.pause_run(engine.database, engine.tenant_id, self._number, actor=actor, reason=reason)

    async def resume(self, reason: str = "", *, actor: str = "client") -> None:
        """Continue a paused run."""
        engine = self._client.engine
        done = await pause.resume_run(
            engine.database, engine.catalog, engine.tenant_id, self._number, actor=actor, reason=reason
        )
        await publish_and_propagate(engine, done)

    async def signal(self, name: str, payload: Any = None, *, key: str | None = None, actor: str = "client") -> None:
        """Send this run an event that one of its nodes waits for, or will wait for."""
        await self._client.signal(name, payload, key=key, run_id=self.run_id, actor=actor)

    async def approve(self, node: str, *, comment: str = "", actor: str = "client") -> None:
        """Give the approval that a node waits for, or will; `Conflict` if it was already answered or it is too late."""
        await self._decide(node, approved=True, comment=comment, actor=actor)

    async def reject(self, node: str, *, comment: str = "", actor: str = "client") -> None:
        """Refuse the approval that a node waits for, or will: the node fails."""
        await self._decide(node, approved=False, comment=comment, actor=actor)

    async def _decide(self, node: str, *, approved: bool, comment: str, actor: str) -> None:
        engine = self._client.engine
        where = (engine.database, engine.catalog, engine.tenant_id, self._number, node)
        done = await answer_approval(*where, is_given=approved, actor=actor, reason=comment)
        await publish_and_propagate(engine, done.notifications)

    async def retry(self, reason: str = "", *, only: str | None = None, actor: str = "client") -> list[str]:
        """Run failed nodes again with everything downstream of them, or `only` one node; return the reset nodes."""
        engine = self._client.engine
        done = await run_commands.retry_run(
            engine.database,
            engine.catalog,
            engine.tenant_id,
            self._number,
            actor=actor,
            reason=reason,
            only=only,
        )
        await publish_and_propagate(engine, done.notifications)
        return done.reset

    async def plan_retry(self, *, only: str | None = None) -> run_commands.PlannedRetry:
        """Return what `retry` would reset, and which effects may happen again. Changes nothing."""
        engine = self._client.engine
        return await run_commands.plan_retry(engine.database, engine.catalog, engine.tenant_id, self._number, only=only)


async def start_one(client: Client, snapshot: FlowSnapshot, given: Mapping[str, Any], options: RunOptions) -> Run:
    """Start one run of a stored snapshot; under a key at most once."""
    engine = client.engine
    accepted = accept_run_input(snapshot.plan.inputs, given)
    encoded = json_codec.encode(accepted, bytes_max=engine.settings.limits.input_bytes_max, what="input")
    if options.key is not None:
        bounds.valid_key(options.key)
    [number], notifications = await start(engine.database, engine.catalog, snapshot, [encoded], options)
    await publish_and_propagate(engine, notifications)
    return Run(client, number)


async def start_many(
    client: Client,
    intake: FlowIntake,
    found: FlowDefinition | FlowSnapshot,
    inputs: Iterable[Mapping[str, Any]],
    options: RunOptions,
    *,
    session: Session | None,
) -> list[Run]:
    """Start one run per input, all or none; with a session, in its open transaction."""
    encoded = intake.encode(found, inputs)
    if options.key is not None:
        bounds.valid_key(options.key)
        if len(encoded) != 1:
            raise Invalid(
                "One key cannot stand for many runs.", code="invalid_key", advice="Start keyed runs one by one."
            )
    if not encoded:
        return []
    engine = client.engine
    snapshot = await intake.snapshot(found)
    if session is not None:
        await engine.catalog.allowance.require(engine.tenant_id, len(encoded), key=options.key, session=session)
        numbers, _ = await start_within(session, engine.catalog, snapshot, encoded, options)
    else:
        numbers, notifications = await start(engine.database, engine.catalog, snapshot, encoded, options)
        await publish_and_propagate(engine, notifications)
    return [Run(client, number) for number in numbers]


async def copy_run(client: Client, number: int, changed: Mapping[str, Any], options: RunOptions | None = None) -> Run:
    """Start a run like another one, with `changed` input and other `options`."""
    engine = client.engine
    async with engine.database.session() as session:
        row = await session.fetchrow(_READ_FOR_COPY, number, engine.tenant_id)
        if row is None:
            raise no_run(number)
        await engine.catalog.flows.learn([row["snapshot_id"]], session)
    options = options or RunOptions()
    options = replace(
        options,
        max_active=row["max_active"] if options.max_active is None else options.max_active,
        priority=row["priority"] if options.priority is None else options.priority,
        tags=options.tags or tuple(row["tags"] or ()),
        original_run_id=number,
    )
    snapshot = engine.catalog.flows.snapshot(row["snapshot_id"])
    return await start_one(client, snapshot, {**json_codec.decode(row["input"]), **changed}, options)
