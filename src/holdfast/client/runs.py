"""Client interface of runs: start them, wait for them, inspect and control them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.authoring.flow.flow import BoundFlow
from holdfast.client.run_events import RunEvent, run_events
from holdfast.core.explain.task import Explanation
from holdfast.core.values.bounds import no_run
from holdfast.engine.lifecycle.runs import commands as run_commands
from holdfast.engine.lifecycle.runs.children import run_output
from holdfast.engine.lifecycle.runs.start import RunOptions
from holdfast.engine.queries.events import START
from holdfast.engine.queries.explain_run import why_node, why_run
from holdfast.engine.queries.runs import RunView, show_run
from holdfast.engine.use_cases import runs as run_use_cases
from holdfast.errors import NotFound, TaskFailed
from holdfast.store.sql.flows import run_commands as run_commands_sql
from holdfast.store.sql.flows import runs as runs_sql

if TYPE_CHECKING:
    from holdfast.client.client import Client


def options_of(flow: object) -> RunOptions:
    """Return the start options that a flow is bound to, or the defaults."""
    if not isinstance(flow, BoundFlow):
        return RunOptions()
    return RunOptions(max_active=flow.concurrency, priority=flow.priority, tags=flow.tags, key=flow.key)


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
            row = await runs_sql.run_snapshots(session, [self._number], engine.tenant_id)
            if row is None:
                raise no_run(self.run_id)
            return await run_output(session, engine.catalog, self._number, row.snapshot_id)

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
        run = (engine.database, engine.catalog, engine.tenant_id, self._number)
        if node is None:
            return await why_run(*run, silent_seconds=engine.silent_seconds)
        return await why_node(*run, node, silent_seconds=engine.silent_seconds)

    async def clone(self, /, **changed: Any) -> Run:
        """Start a copy, linked to this run: the same snapshot of the flow, and the same input except for `changed`."""
        number = await run_use_cases.copy_run(self._client.engine, self._number, changed, RunOptions())
        return Run(self._client, number)

    async def tasks(self) -> list[RunTask]:
        """List every node of the run, in the order of the flow, with the state of its task."""
        engine = self._client.engine
        async with engine.database.session() as session:
            row = await runs_sql.run_snapshots(session, [self._number], engine.tenant_id)
            if row is None:
                raise no_run(self.run_id)
            await engine.catalog.flows.learn([row.snapshot_id], session)
            nodes = engine.catalog.flows.snapshot(row.snapshot_id).plan.nodes
            rows = await run_commands_sql.node_states(session, self._number, engine.tenant_id)
        return [
            RunTask(
                node=nodes[row.node_no].name,
                task_id=str(self._number + 1 + row.node_no),
                state=row.state,
                attempt=row.attempt,
            )
            for row in rows
        ]

    async def cancel(self, reason: str = "", *, actor: str = "client") -> None:
        """Cancel the run: no node starts any more, waiting ones end, running ones are asked to stop."""
        await run_use_cases.cancel_run(self._client.engine, self._number, actor=actor, reason=reason)

    async def pause(self, reason: str = "", *, actor: str = "client") -> None:
        """Release no more nodes until `resume`."""
        await run_use_cases.pause_run(self._client.engine, self._number, actor=actor, reason=reason)

    async def resume(self, reason: str = "", *, actor: str = "client") -> None:
        """Continue a paused run."""
        await run_use_cases.resume_run(self._client.engine, self._number, actor=actor, reason=reason)

    async def signal(self, name: str, payload: Any = None, *, key: str | None = None, actor: str = "client") -> None:
        """Send this run an event that one of its nodes waits for, or will wait for."""
        await self._client.signal(name, payload, key=key, run_id=self.run_id, actor=actor)

    async def approve(self, node: str, *, comment: str = "", actor: str = "client") -> None:
        """Give the approval that a node waits for, or will; `Conflict` if it was already answered or it is too late."""
        engine = self._client.engine
        await run_use_cases.answer_approval(engine, self._number, node, is_given=True, actor=actor, reason=comment)

    async def reject(self, node: str, *, comment: str = "", actor: str = "client") -> None:
        """Refuse the approval that a node waits for, or will: the node fails."""
        engine = self._client.engine
        await run_use_cases.answer_approval(engine, self._number, node, is_given=False, actor=actor, reason=comment)

    async def retry(self, reason: str = "", *, only: str | None = None, actor: str = "client") -> list[str]:
        """Run failed nodes again with everything downstream of them, or `only` one node; return the reset nodes."""
        engine = self._client.engine
        done = await run_use_cases.retry_run(engine, self._number, actor=actor, reason=reason, only=only)
        return done.reset

    async def plan_retry(self, *, only: str | None = None) -> run_commands.PlannedRetry:
        """Return what `retry` would reset, and which effects may happen again. Changes nothing."""
        engine = self._client.engine
        return await run_commands.plan_retry(engine.database, engine.catalog, engine.tenant_id, self._number, only=only)
