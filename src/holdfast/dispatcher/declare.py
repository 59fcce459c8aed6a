"""Declare: a worker tells the database which flows its code has, so that anybody can start them by name.

A flow is kept with a snapshot of what its nodes run under; a process without the code starts that. A flow that changed
without a new version is refused, and so is the worker: to run on with two meanings of one version would be worse.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from holdfast.core.action_rules import ActionRules
from holdfast.core.graph import FlowDefinition
from holdfast.dispatcher.start import rules_for, snapshot_of
from holdfast.errors import NotFound
from holdfast.store.catalog import Catalog

log = logging.getLogger("holdfast.flows")


async def declare_flows(
    catalog: Catalog, tenant_id: int, flows: Iterable[FlowDefinition], known: Mapping[str, ActionRules]
) -> None:
    """Keep validated flows; `known` are the actions of this process, others are as some worker declared them."""
    for definition in flows:
        await catalog.flows.keep(tenant_id, definition)
        try:
            rules = await rules_for(catalog, tenant_id, definition, known)
        except NotFound as missing:
            # The worker with that action may come later; until then the flow is known and cannot be started.
            log.warning("%s", missing)
            continue
        await snapshot_of(catalog, tenant_id, definition, rules)
