"""Declare: a worker tells the database which actions and flows its code has, so that anybody can ask for them by name.

A flow is kept with a snapshot of what its nodes run under; a process without the code starts that. A flow that changed
without a new version is refused, and so is the worker: to run on with two meanings of one version would be worse.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.tasks.action_rules import ActionRules
from holdfast.engine.lifecycle.runs.flow_snapshots import snapshot_tree
from holdfast.errors import NotFound
from holdfast.store.catalog import Catalog

log = logging.getLogger("holdfast.flows")


async def declare_action(
    catalog: Catalog, tenant_id: int, name: str, rules: ActionRules, *, version: str, launcher: str | None
) -> None:
    """Keep what a process says about one of its actions. Nothing here has a default: whoever declares says it all."""
    await catalog.declare(
        tenant_id, name, rules.queue, rules.policy, version, launcher=launcher, priority=rules.priority
    )


async def declare_flows(
    catalog: Catalog, tenant_id: int, flows: Sequence[FlowDefinition], actions: Mapping[str, ActionRules]
) -> None:
    """Keep the validated flows of a process, older versions first; `actions` are its own, others are as some worker
    declared them. A flow inside a flow is the newest of its name."""
    newest = {definition.name: definition for definition in flows}
    for definition in flows:
        await catalog.flows.keep(tenant_id, definition)
    for definition in flows:
        try:
            await snapshot_tree(catalog, tenant_id, definition, actions, newest.get)
        except NotFound as missing:
            # Who has that action or flow may come later; until then this one is known and cannot be started.
            log.warning("%s", missing)
