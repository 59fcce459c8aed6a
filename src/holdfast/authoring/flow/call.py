"""Calls that add nodes to a flow: an action or another flow, called directly or with settings for the node.

double(x=order["count"])                                   a node `double`
double.named("left").after(prepare)(x=1)                   a name, and an order without a value
double.when(check["ok"])(x=1)                              a condition
double.node(queue="slow", timeout="5m")(x=1)               other settings for this node
double.map(x=orders["counts"])                             one task per item
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from holdfast.authoring.flow.reference import Reference, condition_of
from holdfast.authoring.flow.trace import NodeSettings, required_trace
from holdfast.core.flows.nodes import NodeKind, TriggerRule
from holdfast.core.flows.ports import Port
from holdfast.core.flows.refusal import refusal, shown
from holdfast.core.values.duration import seconds_of
from holdfast.errors import Invalid


class Callee(NamedTuple):
    """What a node runs, the default name of the node, and its parameters.

    `parameters` are names in the order of positional arguments; without `ports` any name is accepted.
    """

    kind: NodeKind
    name: str
    node_name: str
    parameters: tuple[str, ...] = ()
    ports: tuple[Port, ...] | None = None


class Placeable(Protocol):
    """An object that can become a node."""

    def callee(self) -> Callee: ...


_PLAIN = NodeSettings()


@dataclass(frozen=True, slots=True)
class NodeCall:
    """A pending call with the settings of its node. Each method returns a new one."""

    _callee: Callee
    _settings: NodeSettings = _PLAIN

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Add the node; return a reference to its output."""
        if self._settings.concurrency is not None or self._settings.map_over is not None:
            raise _map_only(self._callee.name)
        return self._placed(self._callee.kind, _arguments(self._callee, args, kwargs), self._settings)

    def map(self, **inputs: Any) -> Any:
        """Add a node that runs once per item of a list; its output is the list of their outputs, in order.

        The list is the one input that is a value of the flow or a list; `.node(map_over=…)` names it if there are
        several. Every other input is the same for each item.
        """
        if self._callee.kind is not NodeKind.TASK:
            raise refusal(
                "DAG_VALIDATION_NODE_INVALID",
                f"{self._callee.name} is a flow, but only an action can be mapped.",
                "Call the flow once with the complete list.",
            )
        over = self._settings.map_over or _mapped_over(self._callee.name, inputs)
        return self._placed(NodeKind.MAP, inputs, replace(self._settings, map_over=over))

    def named(self, name: str) -> NodeCall:
        """Give the node this name instead of the function's."""
        return replace(self, _settings=replace(self._settings, name=name))

    def after(self, *nodes: Any) -> NodeCall:
        """Make the node wait for these nodes, without taking a value from them."""
        return replace(self, _settings=replace(self._settings, after=(*self._settings.after, *nodes)))

    def when(self, condition: Any) -> NodeCall:
        """Run the node only if this is true: a value, or a comparison such as `check["count"] > 3`."""
        if self._settings.condition is not None:
            raise refusal(
                "DAG_VALIDATION_CONDITION_INVALID",
                f"A node of {self._callee.name} has two conditions.",
                "Combine them in an action.",
            )
        return replace(self, _settings=replace(self._settings, condition=condition_of(condition)))

    def node(
        self,
        name: str | None = None,
        *,
        after: Any = (),
        when: Any = None,
        trigger_rule: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        timeout: str | float | None = None,
        max_retries: int | None = None,
        concurrency: int | None = None,
        map_over: str | None = None,
    ) -> NodeCall:
        """Set several settings of the node at once; settings that are not given stay unchanged."""
        changes = {
            "name": name,
            "trigger_rule": None if trigger_rule is None else rule_of(trigger_rule),
            "queue": queue,
            "priority": priority,
            "timeout_seconds": None if timeout is None else seconds_of(timeout),
            "max_retries": max_retries,
            "concurrency": concurrency,
            "map_over": map_over,
        }
        said: dict[str, Any] = {key: value for key, value in changes.items() if value is not None}
        call = replace(self, _settings=replace(self._settings, **said)).after(*nodes_of(after))
        return call if when is None else call.when(when)

    def _placed(self, kind: NodeKind, arguments: Mapping[str, object], settings: NodeSettings) -> Reference:
        return _added(self._callee, kind, arguments, settings)


class Placing:
    """Mixin for actions and flows: the methods that start a node call with settings."""

    __slots__ = ()

    def named(self: Placeable, name: str) -> NodeCall:
        """Start a node call with this name instead of the function's."""
        return NodeCall(self.callee()).named(name)

    def after(self: Placeable, *nodes: Any) -> NodeCall:
        """Start a node call that waits for these nodes, without taking a value from them."""
        return NodeCall(self.callee()).after(*nodes)

    def when(self: Placeable, condition: Any) -> NodeCall:
        """Start a node call that runs only if this is true: a value, or a comparison such as `check["count"] > 3`."""
        return NodeCall(self.callee()).when(condition)

    def node(self: Placeable, name: str | None = None, **settings: Any) -> NodeCall:
        """Start a node call with settings: after, when, trigger_rule, queue, priority, timeout, max_retries and, for a
        map, concurrency and map_over.
        """
        return NodeCall(self.callee()).node(name, **settings)


def rule_of(rule: object) -> TriggerRule:
    """Return a trigger rule by its name."""
    try:
        return TriggerRule(rule)  # type: ignore[arg-type]
    except ValueError:
        raise refusal(
            "DAG_VALIDATION_NODE_INVALID",
            f"{shown(rule)} is not a trigger rule.",
            f"Choose one of {', '.join(TriggerRule)}.",
            field="trigger_rule",
        ) from None


def nodes_of(nodes: Any) -> tuple[Any, ...]:
    """Return `after=` as a tuple; it accepts one node or several."""
    return tuple(nodes) if isinstance(nodes, list | tuple) else (nodes,)


def _arguments(callee: Callee, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    if len(args) > len(callee.parameters):
        raise refusal(
            "DAG_VALIDATION_BINDING_INPUT_KEY_MISSING",
            f"{callee.name} is called with {len(args)} values, but takes {len(callee.parameters)}.",
            f"It takes {', '.join(callee.parameters) or 'nothing'}.",
        )
    placed = dict(zip(callee.parameters, args, strict=False))
    if twice := [name for name in placed if name in kwargs]:
        raise refusal(
            "DAG_VALIDATION_BINDING_INPUT_KEY_CONFLICT",
            f"{callee.name} is given {', '.join(twice)} twice, by position and by name.",
            input_key=twice[0],
        )
    return placed | kwargs


def called(callee: Callee, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Add the node of a plain call."""
    return _added(callee, callee.kind, _arguments(callee, args, kwargs), _PLAIN)


def _added(callee: Callee, kind: NodeKind, arguments: Mapping[str, object], settings: NodeSettings) -> Reference:
    trace = required_trace(f"A node of {callee.name}")
    return trace.add(kind, callee.name, callee.node_name, arguments, settings, callee.ports)


def _mapped_over(name: str, inputs: Mapping[str, object]) -> str:
    found = [key for key, value in inputs.items() if isinstance(value, Reference | list | tuple)]
    if len(found) == 1:
        return found[0]
    said = f"{', '.join(found)} could be its list" if found else "none of its inputs is a list or a value of the flow"
    raise refusal(
        "DAG_VALIDATION_MAP_LIST_INVALID",
        f"A map of {name} runs over one list, but {said}.",
        'Name the list: `.node(map_over="…").map(…)`.',
    )


def _map_only(name: str) -> Invalid:
    return refusal(
        "DAG_VALIDATION_NODE_INVALID",
        f"A node of {name} that is not a map has concurrency or map_over.",
        "Use `.map(…)`, or omit them.",
    )
