"""Operations on flows that workers declared."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.identity.access import Access
from holdfast.engine.queries import flows
from holdfast.engine.queries.flows import FlowView
from holdfast.operations.context import OperationContext
from holdfast.operations.operation import Request, operation
from holdfast.operations.paging import page_of
from holdfast.operations.shared_types import ListNames


class FlowPage(msgspec.Struct, frozen=True, kw_only=True):
    flows: list[FlowView]
    next: str | None


class OfFlow(Request, frozen=True, kw_only=True):
    """A flow; by default its newest version."""

    name: str
    version: int | None = None


class FlowShown(msgspec.Struct, frozen=True, kw_only=True):
    """A flow and its whole definition."""

    name: str
    version: int
    digest: str
    definition: dict[str, Any]


@operation("flow.list", "GET /api/v1/flows", Access.VIEWER)
async def list_flows(context: OperationContext, request: ListNames) -> FlowPage:
    """Lists the flows that workers declared or clients started, newest version first."""
    rows = await flows.list_flows(context.database, context.tenant_id)
    page, following = page_of(rows, lambda row: f"{row.name}:{row.version}", request.after, request.limit)
    return FlowPage(flows=page, next=following)


@operation("flow.show", "GET /api/v1/flows/{name}", Access.VIEWER, commands=("flow show", "flow graph"))
async def show_flow(context: OperationContext, request: OfFlow) -> FlowShown:
    """Shows one flow with its whole definition."""
    flow = await context.engine.catalog.flows.read(context.tenant_id, request.name, request.version)
    return FlowShown(name=flow.name, version=flow.version, digest=flow.digest(), definition=flow.to_json())


OPERATIONS = (list_flows, show_flow)
