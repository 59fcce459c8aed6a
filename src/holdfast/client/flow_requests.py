"""Start requests of a client: flows are resolved, and prepared once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.authoring.action import Action, BoundAction
from holdfast.authoring.flow.flow import BoundFlow, Flow
from holdfast.client.enqueue_requests import Intake
from holdfast.codec import json_codec
from holdfast.core.flows.bindings import accept_run_input
from holdfast.core.flows.graph import FlowDefinition
from holdfast.engine.lifecycle.runs.flow_snapshots import snapshot_tree
from holdfast.errors import Invalid
from holdfast.store.flow_definitions import FlowSnapshot

if TYPE_CHECKING:
    from holdfast.client.client import Client


class FlowIntake:
    """The flows that one client knows, and their snapshots."""

    def __init__(
        self, client: Client, actions: Mapping[str, Action[..., Any]], flows: Mapping[str, Flow[...]], intake: Intake
    ) -> None:
        self._client = client
        self._actions = actions
        self._flows = flows
        self._intake = intake
        self._snapshots: dict[int, tuple[FlowDefinition, FlowSnapshot]] = {}
        self._forgotten = 0

    async def found(self, flow: Flow[...] | BoundFlow[...] | FlowDefinition | str) -> FlowDefinition | FlowSnapshot:
        """Return the definition from the code, or the stored one for a name that the code does not know."""
        if isinstance(flow, str):
            own, engine = self._own_definition(flow), self._client.engine
            return own if own is not None else await engine.catalog.flows.newest(engine.tenant_id, flow)
        if isinstance(flow, BoundFlow):
            flow = flow.flow
        if not isinstance(flow, Flow | FlowDefinition):
            raise _not_a_flow(flow)
        return flow.definition if isinstance(flow, Flow) else flow

    def encode(self, found: FlowDefinition | FlowSnapshot, inputs: Iterable[Mapping[str, Any]]) -> list[bytes]:
        taken = found.inputs if isinstance(found, FlowDefinition) else found.plan.inputs
        accepted = [accept_run_input(taken, given) for given in inputs]
        return json_codec.encode_many(accepted, bytes_max=self._intake.input_bytes_max, what="input")

    async def snapshot(self, found: FlowDefinition | FlowSnapshot) -> FlowSnapshot:
        """Return the stored snapshot of a flow; it is built once per flow and client."""
        if not isinstance(found, FlowDefinition):
            return found
        engine = self._client.engine
        if self._forgotten != engine.catalog.forgotten:
            self._snapshots.clear()
            self._forgotten = engine.catalog.forgotten
        if (known := self._snapshots.get(id(found))) is None:
            await self._intake.declare_launched()
            rules = {name: action.rules(engine.policy_defaults) for name, action in self._actions.items()}
            snapshot = await snapshot_tree(
                engine.catalog, engine.tenant_id, found.validated(), rules, self._own_definition
            )
            # The flow is stored with it, because an id identifies its object only while the object lives.
            known = self._snapshots[id(found)] = (found, snapshot)
        return known[1]

    def _own_definition(self, name: str) -> FlowDefinition | None:
        known = self._flows.get(name)
        return None if known is None else known.definition


def _not_a_flow(given: object) -> Invalid:
    if isinstance(given, Action | BoundAction):
        name = given.action.name if isinstance(given, BoundAction) else given.name
        said, advice = f"{name} is an action", "Enqueue it: client.enqueue(action, …)."
    elif callable(given):
        name = getattr(given, "__qualname__", None) or repr(given)[:80]
        said, advice = f"{name} is a plain function", "Make it a flow: @app.flow above it."
    else:
        said, advice = f"{given!r:.80} is of the type {type(given).__name__}", "Give a flow, or the name of one."
    return Invalid(f"Only flows are started; {said}.", code="not_a_flow", advice=advice)
