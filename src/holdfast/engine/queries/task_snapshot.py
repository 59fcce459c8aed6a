"""Capture the input of a task and the record of its attempts, for a replay elsewhere. Read-only."""

from __future__ import annotations

import msgspec

from holdfast.core.effects.effect import stable_key
from holdfast.core.tasks.replay import Receipt, Recorded
from holdfast.engine.effects.steps import StoredStep
from holdfast.engine.leases import Claimed
from holdfast.engine.lifecycle.runs.inputs import with_inputs
from holdfast.engine.lifecycle.runs.outputs import read_runs
from holdfast.errors import Conflict, NotFound
from holdfast.store.catalog import Catalog, Lane
from holdfast.store.database import Database, Session
from holdfast.store.sql.flows import runs as runs_sql
from holdfast.store.sql.queries import replay as replay_sql

FAILED = ("failed", "timed_out")


class Captured(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a task, its lane, and the attempt to compare a replay with (None: it never ran)."""

    task_id: int
    run_id: int | None
    lane: Lane
    input: bytes
    tags: tuple[str, ...]
    recorded: Recorded | None
    receipts: tuple[Receipt, ...] = ()
    """The receipts of the task's effects; a replay gets the same ones."""
    steps: tuple[StoredStep, ...] = ()
    """The stored steps of that attempt's generation: effects were requested with their results."""

    @property
    def attempt(self) -> int:
        return 1 if self.recorded is None else self.recorded.attempt


async def capture(
    database: Database,
    catalog: Catalog,
    tenant_id: int,
    task_id: int,
    *,
    attempt: int | None = None,
    also: tuple[str, str] | None = None,
) -> Captured:
    """Read a task for a replay of the given attempt, or of the last failed attempt, or of the last.

    The input of a node is taken from its dead letter, or else built from its bindings, as for a claim. `also` names an
    effect and its key, whose receipt is included whichever task sent it. `NotFound` if there is no such task or
    attempt; `Conflict` if there is no code or no input to run.
    """
    installation = "" if also is None else await catalog.installation()
    async with database.transaction() as session:
        await session.execute("set transaction read only")
        row = await replay_sql.read_captured(session, task_id, tenant_id)
        if row is None:
            raise NotFound(f"There is no task {task_id}.", code="task_not_found")
        chosen = _chosen(task_id, await replay_sql.read_recorded(session, task_id, tenant_id), attempt)
        here = (task_id, tenant_id, 0 if chosen is None else chosen.generation)
        kept = await replay_sql.read_kept_input(session, *here)
        if row.is_past and kept is None:
            raise _refused(task_id, "its node was run again with other items, and what this one was given is gone")
        lane_id = row.lane_id or await _lane_of_node(session, catalog, tenant_id, row)
        if lane_id == 0:
            raise _refused(task_id, "its node runs no code of its own")
        await catalog.learn([lane_id], (), session=session)
        key = None if also is None else _key(installation, catalog.lane(lane_id).tenant, *also)
        receipts = await replay_sql.read_receipts(session, task_id, tenant_id, key)
        steps = await replay_sql.read_steps(session, *here)
        given, tags = await _with_input(session, catalog, tenant_id, task_id, lane_id, row, kept)
    return Captured(
        task_id=task_id,
        run_id=row.run_id,
        lane=catalog.lane(lane_id),
        input=given,
        tags=tuple(tags or ()),
        recorded=None if chosen is None else _recorded(chosen),
        receipts=tuple(Receipt(**one._asdict()) for one in receipts),
        steps=tuple(StoredStep(*one) for one in steps),
    )


def _key(installation: str, tenant: str, effect: str, user_key: str) -> str:
    # A key set by the user does not depend on the task.
    return stable_key(
        installation=installation, epoch="", tenant=tenant, effect=effect, user_key=user_key, task_id="", ordinal=0
    )


def _recorded(row: replay_sql.ReadRecordedRow) -> Recorded:
    return Recorded(**{name: value for name, value in row._asdict().items() if name != "generation"})


def _chosen(
    task_id: int, known: list[replay_sql.ReadRecordedRow], attempt: int | None
) -> replay_sql.ReadRecordedRow | None:
    """Return the attempt to compare with; attempts are sorted newest first."""
    if attempt is not None:
        found = next((one for one in known if one.attempt == attempt), None)
        if found is None:
            raise NotFound(f"Task {task_id} has no attempt {attempt}.", code="attempt_not_found")
        return found
    return next((one for one in known if one.state in FAILED), known[0] if known else None)


async def _lane_of_node(
    session: Session, catalog: Catalog, tenant_id: int, captured: replay_sql.ReadCapturedRow
) -> int:
    assert captured.run_id is not None, "only a node has no lane of its own"
    row = await runs_sql.run_snapshots(session, [captured.run_id], tenant_id)
    assert row is not None, "the run of a stored task is stored"
    await catalog.flows.learn([row.snapshot_id], session)
    return catalog.flows.snapshot(row.snapshot_id).lane_ids[captured.node_no]


async def _with_input(
    session: Session,
    catalog: Catalog,
    tenant_id: int,
    task_id: int,
    lane_id: int,
    row: replay_sql.ReadCapturedRow,
    kept: bytes | None,
) -> tuple[bytes, list[str] | None]:
    """Return the input of the task, and its tags."""
    if kept is not None and row.run_id is not None:
        return kept, (await read_runs(session, catalog, [row.run_id]))[row.run_id].tags
    given = Claimed(
        task_id, 0, None, lane_id, 0, 0, 0, tenant_id, row.run_id, row.node_no, row.input or b"{}", row.tags
    )
    [claimed] = await with_inputs(session, catalog, [given])
    if claimed.fault is not None:
        raise _refused(task_id, f"its input cannot be built: {claimed.fault.message}")
    return claimed.input, claimed.tags


def _refused(task_id: int, why: str) -> Conflict:
    return Conflict(f"Task {task_id} cannot be replayed: {why}.", code="not_replayable", task_id=str(task_id))
