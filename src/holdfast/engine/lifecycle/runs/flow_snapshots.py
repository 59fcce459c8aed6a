"""Snapshots of nested flows: a flow with the rules of its actions and a snapshot of every flow that its nodes run.

A run never sees a later edit, so the snapshot of a flow refers to snapshots of all flows inside it. For the same reason
a flow cannot run itself: the recursion would not end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import NodeKind
from holdfast.core.flows.refusal import refusal
from holdfast.core.tasks.action_rules import ActionRules
from holdfast.engine.lifecycle.runs.start import snapshot_of
from holdfast.errors import NotFound
from holdfast.store.catalog import Catalog
from holdfast.store.flow_definitions import FlowSnapshot

FLOW_NESTING_MAX = 50

Find = Callable[[str], FlowDefinition | None]
"""Return the definition of a flow by name, if this process has it."""


async def snapshot_tree(
    catalog: Catalog, tenant_id: int, definition: FlowDefinition, actions: Mapping[str, ActionRules], find: Find
) -> FlowSnapshot:
    """Store a validated flow with all nested flows. Flows and actions unknown to this process are read from the
    database.

    `NotFound` names an action that no worker has declared, or a flow that is not stored. Call it outside any
    transaction.
    """
    return await _Tree(catalog, tenant_id, actions, find).snapshot(definition, ())


class _Tree:
    def __init__(self, catalog: Catalog, tenant_id: int, actions: Mapping[str, ActionRules], find: Find) -> None:
        self._catalog = catalog
        self._tenant_id = tenant_id
        self._actions = actions
        self._find = find
        self._made: dict[str, FlowSnapshot] = {}

    async def snapshot(self, definition: FlowDefinition, above: tuple[str, ...]) -> FlowSnapshot:
        path = (*above, definition.name)
        if definition.name in above or len(path) > FLOW_NESTING_MAX:
            raise refusal(
                "DAG_VALIDATION_FLOW_RECURSIVE",
                f"Flows run one another without end, or more than {FLOW_NESTING_MAX} deep: {' → '.join(path[-6:])}.",
                "Let the outer flow map over a list, or start the next run from an action.",
                flow=definition.name,
            )
        children = {
            node.action: await self._child(node.action, path) for node in definition.nodes if node.kind is NodeKind.FLOW
        }
        rules = await self._rules(definition)
        return await snapshot_of(self._catalog, self._tenant_id, definition, rules, children)

    async def _child(self, name: str, path: tuple[str, ...]) -> FlowSnapshot:
        if (made := self._made.get(name)) is not None:
            return made
        own = self._find(name)
        if own is None:
            made = await self._catalog.flows.newest(self._tenant_id, name)
        else:
            made = await self.snapshot(own, path)
        self._made[name] = made
        return made

    async def _rules(self, definition: FlowDefinition) -> dict[str, ActionRules]:
        rules: dict[str, ActionRules] = {}
        for node in definition.nodes:
            if node.kind not in (NodeKind.TASK, NodeKind.MAP) or node.action in rules:
                continue
            if (found := self._actions.get(node.action)) is None:
                declared = await self._catalog.declared(self._tenant_id, node.action)
                if declared is None:
                    raise NotFound(
                        f"Flow {definition.name} needs the action {node.action} for node {node.name}, "
                        "which neither this app has nor any worker declared.",
                        code="action_not_found",
                        advice="Check its name, or start a worker that has it first.",
                        node=node.name,
                        action=node.action,
                    )
                found = declared
            rules[node.action] = found
        return rules
