"""Definitions and snapshots of flows: stored once, read once, cached for the life of a process.

Both are immutable, so a cached one is never wrong. A version of a flow that was stored with another content is refused.
"""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import json
from collections.abc import Iterable

import msgspec

from holdfast.core.flows.changes import flow_changes
from holdfast.core.flows.graph import FlowDefinition, digest_of
from holdfast.core.flows.plan import Plan
from holdfast.core.flows.refusal import refusal
from holdfast.errors import Conflict, NotFound
from holdfast.store.database import Database, Session
from holdfast.store.flow_plans import GIANT_BYTES, read_plan
from holdfast.store.sql.flows import flows as flows_sql
from holdfast.store.sql.queries import runs as runs_sql

_NAMES_MAX = 1_000
_CHANGES_SHOWN_MAX = 5
_CHANGES_KEPT_MAX = 100


class FlowSnapshot(msgspec.Struct, frozen=True, eq=False):
    """What a run executes: the plan, and the lane, policy and priority of each node by number."""

    snapshot_id: int
    flow_id: int
    tenant_id: int
    plan: Plan
    lane_ids: list[int]
    policy_ids: list[int]
    priorities: list[int]
    child_ids: list[int]


class Flows:
    """The flows of one database, shared by everything in a process that uses it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._flow_ids: dict[tuple[int, str], int] = {}
        self._snapshots: dict[int, FlowSnapshot] = {}
        self._plans: dict[int, Plan] = {}

    def forget_names(self) -> None:
        """Clear the cached ids of definitions: the server is another one."""
        self._flow_ids.clear()

    async def keep(self, tenant_id: int, definition: FlowDefinition, plan: Plan | None = None) -> int:
        """Store a validated definition and return its id; `Conflict` if this version was stored with another
        content."""
        written = definition.digest_input()
        digest = digest_of(written)
        if (known := self._flow_ids.get((tenant_id, digest))) is not None:
            return known
        name, version = definition.name, definition.version
        row = await flows_sql.find_flow(self._database, tenant_id, name, version)
        if row is None:
            plan = plan or Plan.of(definition)
            edges = [(up, down) for down, ups in enumerate(plan.upstream) for up in ups]
            await flows_sql.ensure_flow(
                self._database,
                tenant_id,
                name,
                version,
                digest,
                written.decode(),
                len(definition.nodes),
                [up for up, _ in edges],
                [down for _, down in edges],
            )
            row = await flows_sql.find_flow(self._database, tenant_id, name, version)
            assert row is not None, "it was just created"
        if row.digest != digest:
            raise _changed(await self.read(tenant_id, name, version), definition)
        self._flow_ids[tenant_id, digest] = row.flow_id
        return row.flow_id

    async def read(self, tenant_id: int, name: str, version: int | None = None) -> FlowDefinition:
        """Return one version of a flow, or its newest; `NotFound` if there is none."""
        row = await flows_sql.read_flow(self._database, tenant_id, name, version)
        if row is None:
            raise await self._not_found(tenant_id, name, version)
        return definition_of(row.definition)

    async def newest(self, tenant_id: int, name: str, version: int | None = None) -> FlowSnapshot:
        """Return the snapshot that a run of a flow given by name executes: its newest version, as last declared;
        `NotFound` if there is none."""
        async with self._database.session() as session:
            found = await flows_sql.newest_snapshot(session, tenant_id, name, version)
            if found is not None:
                await self.learn([found], session)
                return self.snapshot(found)
        raise await self._not_found(tenant_id, name, version)

    async def _not_found(self, tenant_id: int, name: str, version: int | None) -> NotFound:
        names = [row.name for row in await flows_sql.flow_names(self._database, tenant_id, _NAMES_MAX)]
        near = difflib.get_close_matches(name, names, n=1)
        shown = name if version is None else f"{name} version {version}"
        known = "A worker that has it declares it when it starts; see `holdfast flow list`."
        return NotFound(
            f"There is no flow {shown}.",
            code="flow_not_found",
            advice=f"Did you mean {near[0]}?" if near and near[0] != name else known,
        )

    async def intern(
        self,
        tenant_id: int,
        flow_id: int,
        plan: Plan,
        lane_ids: list[int],
        policy_ids: list[int],
        priorities: list[int],
        child_ids: list[int],
    ) -> FlowSnapshot:
        """Store a definition with the rules of its nodes, and return it with its id."""
        columns = (lane_ids, policy_ids, priorities, child_ids)
        digest = hashlib.sha256(json.dumps(columns).encode()).digest()
        found = await flows_sql.find_snapshot(self._database, flow_id, digest)
        if found is None:
            await flows_sql.ensure_snapshot(self._database, tenant_id, flow_id, digest, *columns)
            found = await flows_sql.find_snapshot(self._database, flow_id, digest)
            assert found is not None, "it was just created"
        snapshot = FlowSnapshot(found, flow_id, tenant_id, plan, *columns)
        self._snapshots[snapshot.snapshot_id] = snapshot
        return snapshot

    async def snapshot_ids(self, tenant_id: int, name: str, version: int | None = None) -> list[int]:
        """Return the snapshots of a flow, or of one version of it, newest first."""
        return [row[0] for row in await runs_sql.find_snapshots(self._database, tenant_id, name, version)]

    def snapshot(self, snapshot_id: int) -> FlowSnapshot:
        """Return a cached snapshot; call `learn` first."""
        return self._snapshots[snapshot_id]

    async def learn(self, snapshot_ids: Iterable[int], session: Session) -> None:
        """Read the snapshots that are not cached yet, and those that their nodes run."""
        wanted, found = set(snapshot_ids), dict[int, FlowSnapshot]()
        while fresh := [one for one in wanted if one and one not in self._snapshots and one not in found]:
            for row in await flows_sql.read_snapshots(session, fresh):
                snapshot_id, flow_id, tenant_id, definition, *columns = row
                if (plan := self._plans.get(flow_id)) is None:
                    plan = self._plans[flow_id] = await _plan_of(definition)
                found[snapshot_id] = FlowSnapshot(snapshot_id, flow_id, tenant_id, plan, *columns)
            wanted = {child for one in fresh for child in found[one].child_ids}
        # Publish only complete trees: a concurrent caller that finds a snapshot here does not read those of its nodes.
        self._snapshots.update(found)


async def _plan_of(stored: bytes) -> Plan:
    """Read a stored definition; a very large one in a thread, so that the event loop can run tasks meanwhile."""
    if len(stored) <= GIANT_BYTES:
        return read_plan(stored)
    return await asyncio.to_thread(read_plan, stored)


def _changed(before: FlowDefinition, after: FlowDefinition) -> Conflict:
    changes = flow_changes(before, after)
    more = f" and {len(changes) - _CHANGES_SHOWN_MAX} more" if len(changes) > _CHANGES_SHOWN_MAX else ""
    return Conflict(
        f"Flow {after.name} version {after.version} was registered with another content: "
        f"{'; '.join(changes[:_CHANGES_SHOWN_MAX])}{more}.",
        code="flow_version_changed",
        advice=f"Give the changed flow a new version: version={after.version + 1}.",
        flow=after.name,
        version=after.version,
        changes=changes[:_CHANGES_KEPT_MAX],
    )


def definition_of(stored: str) -> FlowDefinition:
    """Decode a stored definition."""
    try:
        return FlowDefinition.from_json(json.loads(stored))
    except ValueError as error:
        raise refusal(
            "DAG_VALIDATION_DEFINITION_SNAPSHOT_PARSE_FAILED",
            f"A stored definition cannot be read: {error}.",
            "Restore it from a backup.",
        ) from error
