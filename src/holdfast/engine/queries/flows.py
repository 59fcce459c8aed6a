"""List stored flows, newest version first."""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.store.database import Database
from holdfast.store.sql.flows import flows as flows_sql


class FlowView(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a flow."""

    name: str
    version: int
    nodes: int
    open_runs: int
    created_at: datetime


async def list_flows(database: Database, tenant_id: int, *, limit: int = 1_000) -> list[FlowView]:
    """Return every version of every flow."""
    rows = await flows_sql.list_flows(database, tenant_id, limit)
    return [
        FlowView(
            name=row.name, version=row.version, nodes=row.nodes, open_runs=row.open_runs, created_at=row.created_at
        )
        for row in rows
    ]
