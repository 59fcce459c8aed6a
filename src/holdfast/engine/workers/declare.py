"""Declare the actions and flows of a worker's code, so that any process can request them by name.

A flow is stored with a snapshot of the rules of its nodes; a process without the code starts that snapshot. A flow that
changed without a new version is refused, and the worker does not start: two meanings of one version would be worse.
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
    """Store the declaration of one action. Nothing here has a default: the declaring process sets every value."""
    await catalog.declare(
        tenant_id, name, rules.queue, rules.policy, version, launcher=launcher, priority=rules.priority
    )


async def declare_flows(
    catalog: Catalog, tenant_id: int, flows: Sequence[FlowDefinition], actions: Mapping[str, ActionRules]
) -> None:
    """Store the validated flows of a process, older versions first. `actions` are its own; others are taken from the
    declarations of other workers. A nested flow is the newest version of its name."""
    newest = {definition.name: definition for definition in flows}
    for definition in flows:
        await catalog.flows.keep(tenant_id, definition)
    for definition in flows:
        try:
            await snapshot_tree(catalog, tenant_id, definition, actions, newest.get)
        except NotFound as missing:
            # The worker with that action or flow may start later; until then this flow is stored but cannot be started.
            log.warning("%s", missing)
