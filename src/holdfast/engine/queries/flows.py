"""List stored flows, newest version first."""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.store.database import Database
from holdfast.store.statements import sql

_LIST_FLOWS = sql("list_flows")


class FlowView(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a flow."""

    name: str
    version: int
    nodes: int
    open_runs: int
    created_at: datetime


async def list_flows(database: Database, tenant_id: int, *, limit: int = 1_000) -> list[FlowView]:
    """Return every version of every flow."""
    rows = await database.fetch(_LIST_FLOWS, tenant_id, limit)
    return [FlowView(**{name: row[name] for name in FlowView.__struct_fields__}) for row in rows]
