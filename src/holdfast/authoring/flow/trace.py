"""Tracing: a flow's function runs once, with references as inputs, and its calls become nodes.

The current trace belongs to the tracing thread or asyncio task, so tracing never affects calls elsewhere. Validation
happens after the function has returned, except for the limit on nodes, which stops endless loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from holdfast.authoring.flow.drafting import Source, edges_into
from holdfast.authoring.flow.reference import Reference, plain_constant, source_of, trace_of
from holdfast.authoring.flow.source_lines import SourceLine, calling_line, raising_line, with_location
from holdfast.core.flows.condition import Condition
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.graph_check import NODES_MAX
from holdfast.core.flows.known_ports import check_against
from holdfast.core.flows.nodes import RUN_INPUT, RUN_OUTPUT, Edge, FlowInput, Node, NodeKind, TriggerRule
from holdfast.core.flows.ports import Port
from holdfast.core.flows.refusal import refusal, shown
from holdfast.errors import Invalid

_tracing: ContextVar[Trace | None] = ContextVar("holdfast_trace", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """The settings of a node besides its input."""

    name: str | None = None
    after: tuple[Reference, ...] = ()
    condition: Condition | None = None
    trigger_rule: TriggerRule = TriggerRule.ALL_SUCCESS
    map_over: str | None = None
    concurrency: int | None = None
    queue: str | None = None
    priority: int | None = None
    timeout_seconds: float | None = None
    max_retries: int | None = None


class Trace:
    """One flow while it is traced."""

    def __init__(self, flow: str) -> None:
        self.flow = flow
        self._nodes: list[Node] = []
        self._edges: list[Edge] = []
        self._ports: dict[str, tuple[Port, ...] | None] = {}
        self._used: dict[str, int] = {}
        self._lines: dict[str, SourceLine | None] = {}

    def add(
        self,
        kind: NodeKind,
        action: str,
        node_name: str,
        arguments: Mapping[str, object],
        settings: NodeSettings,
        ports: tuple[Port, ...] | None = None,
    ) -> Reference:
        """Add a node, named after `node_name` or as its settings say.

        References among its arguments become bindings, constants its config.
        """
        if len(self._nodes) >= NODES_MAX:
            raise refusal(
                "DAG_VALIDATION_NODES_TOO_MANY",
                f"Flow {self.flow} calls more than {NODES_MAX} actions.",
                "Map over a list, or split it into flows.",
                limit=NODES_MAX,
            )
        name = self._name(node_name) if settings.name is None else settings.name
        config, sources = self._input(name, arguments)
        after = [self._upstream(upstream) for upstream in settings.after]
        self._edges += edges_into(name, sources, after=after, condition=settings.condition)
        self._nodes.append(
            Node(
                name=name,
                action=action,
                kind=kind,
                config=config,
                trigger_rule=settings.trigger_rule,
                condition=settings.condition,
                map_over=settings.map_over,
                concurrency=settings.concurrency,
                queue=settings.queue,
                priority=settings.priority,
                timeout_seconds=settings.timeout_seconds,
                max_retries=settings.max_retries,
            )
        )
        self._ports[name] = ports
        self._lines[name] = calling_line()
        self._used.setdefault(name, 1)
        return Reference(self, name)

    def end(self, version: int, inputs: tuple[FlowInput, ...], returned: object) -> FlowDefinition:
        """Return the validated definition, with the function's return value as the run's output."""
        edges = [*self._edges, *edges_into(RUN_OUTPUT, self._output(returned))]
        definition = FlowDefinition(
            name=self.flow, version=version, nodes=tuple(self._nodes), edges=tuple(edges), inputs=inputs
        )
        try:
            return check_against(definition, self._ports)
        except Invalid as error:
            raise with_location(error, self._line_of(error)) from None

    def _line_of(self, error: Invalid) -> SourceLine | None:
        """Return the call that made the node, or the downstream end of the edge, that an error names."""
        named = error.fields.get("node") or str(error.fields.get("edge", "")).rpartition(" → ")[2]
        return self._lines.get(named or next(iter(error.fields.get("cycle", ())), ""))

    def _name(self, wanted: str) -> str:
        """Return `double`, then `double_2`, skipping names that were chosen explicitly."""
        if wanted not in self._used:
            return wanted
        while (name := f"{wanted}_{self._used[wanted] + 1}") in self._used:
            self._used[wanted] += 1
        self._used[wanted] += 1
        return name

    def _input(self, node: str, arguments: Mapping[str, object]) -> tuple[dict[str, Any], list[Source]]:
        config: dict[str, Any] = {}
        sources: list[Source] = []
        for key, value in arguments.items():
            if isinstance(value, Reference):
                sources.append(Source(key, *self._source(value)))
            elif isinstance(value, list | tuple) and any(isinstance(item, Reference) for item in value):
                for index, item in enumerate(value):
                    list_key = f"{key}[{index}]"
                    if isinstance(item, Reference):
                        sources.append(Source(list_key, *self._source(item)))
                    else:
                        config[list_key] = plain_constant(item, f"{list_key} of node {node}")
            else:
                config[key] = plain_constant(value, f"{key} of node {node}")
        return config, sources

    def _output(self, returned: object) -> Iterable[Source]:
        if returned is None:
            return
        parts: Iterable[tuple[str, object]] = [("", returned)]
        if isinstance(returned, dict):
            parts = [(str(key), value) for key, value in returned.items()]
        elif isinstance(returned, list | tuple):
            parts = [(f"[{index}]", value) for index, value in enumerate(returned)]
        flat = [
            (f"{key}[{index}]", item)
            for key, value in parts
            for index, item in (enumerate(value) if isinstance(value, list | tuple) else [("", value)])
        ]
        if not flat:
            raise _no_output(self.flow, returned)
        for key, value in flat:
            if not isinstance(value, Reference):
                raise _no_output(self.flow, value)
            yield Source(key.removesuffix("[]"), *self._source(value))

    def _source(self, reference: Reference) -> tuple[str, str]:
        if trace_of(reference) is not self:
            raise refusal(
                "DAG_VALIDATION_VALUE_FOREIGN",
                f"Flow {self.flow} uses a value of flow {trace_of(reference).flow}.",
                "Pass it as an input: call the other flow inside this one, or give this one a parameter.",
                flow=self.flow,
            )
        return source_of(reference)

    def _upstream(self, upstream_value: object) -> str:
        name = self._source(upstream_value)[0] if isinstance(upstream_value, Reference) else RUN_INPUT
        if name == RUN_INPUT:
            raise refusal(
                "DAG_VALIDATION_EDGE_INVALID",
                f"Flow {self.flow} puts a node after {shown(upstream_value)}, which is not a node.",
                "Pass the return value of an action that this flow called.",
            )
        return name


def trace(flow: str, version: int, inputs: tuple[FlowInput, ...], function: Callable[..., object]) -> FlowDefinition:
    """Run the function with references for its inputs and return the definition that it describes."""
    begun = Trace(flow)
    token = _tracing.set(begun)
    try:
        returned = function(**{flow_input.name: Reference(begun, RUN_INPUT, flow_input.name) for flow_input in inputs})
    except Invalid as error:
        raise with_location(error, raising_line(error.__traceback__)) from error
    except Exception as error:
        broken = Invalid(
            f"Flow {flow} cannot be traced: {type(error).__name__}: {error}",
            code="flow_broken",
            advice="Its function runs once, before any run, and must not fail.",
            flow=flow,
        )
        raise with_location(broken, raising_line(error.__traceback__)) from error
    finally:
        _tracing.reset(token)
    return begun.end(version, inputs, returned)


def current_trace() -> Trace | None:
    """Return the current trace, if any."""
    return _tracing.get()


def required_trace(what: str) -> Trace:
    """Return the current trace; raise `Invalid` outside a flow."""
    begun = _tracing.get()
    if begun is None:
        raise Invalid(
            f"{what} is called outside a flow.",
            code="outside_a_flow",
            advice="Call it inside a function decorated with @app.flow.",
        )
    return begun


def _no_output(flow: str, value: object) -> Invalid:
    return refusal(
        "DAG_VALIDATION_OUTPUT_INVALID",
        f"Flow {flow} returns {shown(value)}, which a run cannot return.",
        "Return the output of a node, an input, or an object or a list of these; an action can return a constant.",
        flow=flow,
    )
