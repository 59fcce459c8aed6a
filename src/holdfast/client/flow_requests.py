"""Start requests of a client: flows are resolved, and prepared once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.authoring.action import Action, BoundAction
from holdfast.authoring.flow.flow import BoundFlow, Flow
from holdfast.client.enqueue_requests import TaskRequests
from holdfast.core.flows.graph import FlowDefinition
from holdfast.engine.lifecycle.runs.flow_snapshots import snapshot_tree
from holdfast.engine.lifecycle.runs.start import RunOptions
from holdfast.engine.use_cases.runs import encode_run_inputs, start_runs, start_runs_in
from holdfast.errors import Invalid
from holdfast.store.database import Session
from holdfast.store.flow_definitions import FlowSnapshot

if TYPE_CHECKING:
    from holdfast.client.client import Client


class FlowRequests:
    """The flows that one client knows, and their snapshots."""

    def __init__(
        self,
        client: Client,
        actions: Mapping[str, Action[..., Any]],
        flows: Mapping[str, Flow[...]],
        task_requests: TaskRequests,
    ) -> None:
        self._client = client
        self._actions = actions
        self._flows = flows
        self._task_requests = task_requests
        self._snapshots: dict[int, tuple[FlowDefinition, FlowSnapshot]] = {}
        self._names_forgotten = 0

    async def find(self, flow: Flow[...] | BoundFlow[...] | FlowDefinition | str) -> FlowDefinition | FlowSnapshot:
        """Return the definition from the code, or the stored one for a name that the code does not know."""
        if isinstance(flow, str):
            own, engine = self._own_definition(flow), self._client.engine
            return own if own is not None else await engine.catalog.flows.newest(engine.tenant_id, flow)
        if isinstance(flow, BoundFlow):
            flow = flow.flow
        if not isinstance(flow, Flow | FlowDefinition):
            raise _not_a_flow(flow)
        return flow.definition if isinstance(flow, Flow) else flow

    async def start(
        self,
        flow: FlowDefinition | FlowSnapshot,
        inputs: Iterable[Mapping[str, Any]],
        options: RunOptions,
        *,
        session: Session | None = None,
    ) -> Sequence[int]:
        """Start one run per input, all or none, with a session in its open transaction; return their numbers."""
        engine = self._client.engine
        declared = flow.inputs if isinstance(flow, FlowDefinition) else flow.plan.inputs
        encoded = encode_run_inputs(engine, declared, inputs, options.key)
        if not encoded:
            return []
        snapshot = await self.snapshot(flow)
        if session is None:
            return await start_runs(engine, snapshot, encoded, options)
        return await start_runs_in(session, engine.catalog, snapshot, encoded, options)

    async def snapshot(self, flow: FlowDefinition | FlowSnapshot) -> FlowSnapshot:
        """Return the stored snapshot of a flow; it is built once per flow and client."""
        if not isinstance(flow, FlowDefinition):
            return flow
        engine = self._client.engine
        if self._names_forgotten != engine.catalog.forgotten:
            self._snapshots.clear()
            self._names_forgotten = engine.catalog.forgotten
        if (known := self._snapshots.get(id(flow))) is None:
            await self._task_requests.declare_all_launched()
            rules = {name: action.rules(engine.policy_defaults) for name, action in self._actions.items()}
            snapshot = await snapshot_tree(
                engine.catalog, engine.tenant_id, flow.validated(), rules, self._own_definition
            )
            # The flow is stored with it, because an id identifies its object only while the object lives.
            known = self._snapshots[id(flow)] = (flow, snapshot)
        return known[1]

    def _own_definition(self, name: str) -> FlowDefinition | None:
        known = self._flows.get(name)
        return None if known is None else known.definition


def _not_a_flow(value: object) -> Invalid:
    if isinstance(value, Action | BoundAction):
        name = value.action.name if isinstance(value, BoundAction) else value.name
        kind, advice = f"{name} is an action", "Enqueue it: client.enqueue(action, …)."
    elif callable(value):
        name = getattr(value, "__qualname__", None) or repr(value)[:80]
        kind, advice = f"{name} is a plain function", "Make it a flow: @app.flow above it."
    else:
        kind, advice = f"{value!r:.80} is of the type {type(value).__name__}", "Give a flow, or the name of one."
    return Invalid(f"Only flows are started; {kind}.", code="not_a_flow", advice=advice)
