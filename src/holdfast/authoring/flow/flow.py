"""Flows: versioned graphs under a name, traced from a function or read from a file.

The inputs are known immediately, from the signature. The function is traced once, when the definition is first needed.
So it may name actions that are defined below it or in modules that import this one, and importing an app stays cheap. A
worker needs the definitions of all its flows when it starts, so a mistake shows there, before any run.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec

from holdfast.authoring.flow.call import Callee, Placing, called
from holdfast.authoring.flow.reference import plain_constant
from holdfast.authoring.flow.trace import current_trace, trace
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.graph_check import NODES_MAX
from holdfast.core.flows.node_check import is_whole
from holdfast.core.flows.nodes import FlowInput, NodeKind
from holdfast.core.flows.ports import Port
from holdfast.core.values import bounds
from holdfast.errors import Invalid

P = ParamSpec("P")


class Flow(Placing, Generic[P]):
    """One registered flow. The client starts runs of it; inside another flow a call makes it a node."""

    __slots__ = ("_callee", "_definition", "_lock", "_make", "inputs", "name", "version")

    def __init__(
        self, name: str, version: int, inputs: tuple[FlowInput, ...], make: Callable[[], FlowDefinition]
    ) -> None:
        self.name = name
        self.version = version
        self.inputs = inputs
        self._make = make
        self._definition: FlowDefinition | None = None
        self._lock = threading.RLock()
        ports = tuple(Port(key=flow_input.name, is_required=flow_input.is_required) for flow_input in inputs)
        self._callee = Callee(
            NodeKind.FLOW, name, name.rpartition(".")[2], tuple(flow_input.name for flow_input in inputs), ports
        )

    @classmethod
    def of_function(cls, name: str, version: int, function: Callable[P, object]) -> Flow[P]:
        """Build a flow from a plain function."""
        inputs = _inputs_of(name, function)
        return cls(name, version, inputs, lambda: trace(name, version, inputs, function))

    @classmethod
    def of_definition(cls, definition: FlowDefinition) -> Flow[...]:
        """Build a flow from an existing definition."""
        flow = Flow[...](definition.name, definition.version, definition.inputs, definition.validated)
        assert flow.definition
        return flow

    @property
    def definition(self) -> FlowDefinition:
        """The validated definition; the first access traces the function."""
        with self._lock:
            if self._definition is None:
                self._definition = self._make()
            return self._definition

    def __repr__(self) -> str:
        return f"Flow({self.name!r}, version={self.version})"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Inside a flow, add a node that starts a run of this one; refused outside."""
        if current_trace() is None:
            raise Invalid(
                f"The flow {self.name} is called outside a flow.",
                code="outside_a_flow",
                advice="Start a run of it: `await client.start(flow, …)`.",
            )
        return called(self._callee, args, kwargs)

    def callee(self) -> Callee:
        return self._callee

    def options(
        self,
        *,
        key: str | None = None,
        tags: list[str] | tuple[str, ...] = (),
        priority: int | None = None,
        concurrency: int | None = None,
    ) -> BoundFlow[P]:
        """Return this flow with options for the next start.

        `concurrency` limits how many nodes of the run are active at once. A node that maps over a list or runs a flow
        counts as one.
        """
        if concurrency is not None and not is_whole(concurrency, 1, NODES_MAX):
            raise Invalid(
                f"concurrency={concurrency!r} is not a whole number from 1 to {NODES_MAX}.",
                code="invalid_concurrency",
                field="concurrency",
            )
        return BoundFlow(
            flow=self,
            key=None if key is None else bounds.valid_key(key),
            tags=bounds.valid_tags(tags),
            priority=None if priority is None else bounds.valid_priority(priority),
            concurrency=concurrency,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundFlow(Generic[P]):
    """A flow together with the options of one start."""

    flow: Flow[P]
    key: str | None = None
    tags: tuple[str, ...] = ()
    priority: int | None = None
    concurrency: int | None = None


def _inputs_of(name: str, function: Callable[..., object]) -> tuple[FlowInput, ...]:
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise Invalid(
            f"The flow {name} is not a plain function.",
            code="invalid_flow",
            advice="Use `def`: a flow only declares which actions run and does not await them.",
        )
    inputs = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise Invalid(
                f"The flow {name} has the parameter {parameter}; inputs of a run have names.",
                code="invalid_flow",
                advice="Make it an ordinary or keyword parameter.",
            )
        if parameter.name == "connection":
            raise Invalid(
                f"The flow {name} has a parameter named 'connection', which `client.start` reserves.",
                code="invalid_flow",
                advice="Give it another name.",
            )
        is_required = parameter.default is parameter.empty
        default = None if is_required else plain_constant(parameter.default, f"default of {parameter.name}")
        inputs.append(FlowInput(name=parameter.name, is_required=is_required, default=default))
    return tuple(inputs)
