"""Parts of a flow definition: nodes, edges with their bindings, and the inputs of a run.

Two names stand for the run itself and can never name a node. Edges from `$input` bind the run's input; edges to
`$output` define what the run returns. Neither adds ordering: no node waits for `$input`, and `$output` is built on
request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from holdfast.core.flows.condition import Condition
from holdfast.core.flows.ports import Port

RUN_INPUT = "$input"
RUN_OUTPUT = "$output"


class NodeKind(StrEnum):
    """What releasing a node starts: one task, a task per item of a list, a run of another flow, or only a wait."""

    TASK = "task"
    MAP = "map"
    FLOW = "flow"
    WAIT = "wait"


class TriggerRule(StrEnum):
    """Which ends of its upstreams release a node (see `release`)."""

    ALL_SUCCESS = "all_success"
    ALL_DONE = "all_done"
    ONE_SUCCESS = "one_success"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node. `action` names an action; for `flow` a flow; for `wait` the event it waits for.

    `config` is static input under the same keys as bindings. `inputs` and `outputs` are declared by the action; None
    means unknown, and then any key is accepted. A `map` node runs once per item of the list on its `map_over` input, at
    most `concurrency` at once; its output is the list of their outputs in order.
    """

    name: str
    action: str
    kind: NodeKind = NodeKind.TASK
    config: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[Port, ...] | None = None
    outputs: tuple[str, ...] | None = None
    trigger_rule: TriggerRule = TriggerRule.ALL_SUCCESS
    condition: Condition | None = None
    map_over: str | None = None
    concurrency: int | None = None
    queue: str | None = None
    priority: int | None = None
    timeout_seconds: float | None = None
    max_retries: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A value carried along an edge. An empty `output_key` is the whole output."""

    output_key: str = ""
    input_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A dependency: `downstream` waits for `upstream` and takes its values; an order-only edge takes none."""

    upstream: str
    downstream: str
    bindings: tuple[Binding, ...] = ()
    is_order_only: bool = False

    def __str__(self) -> str:
        return f"{self.upstream} → {self.downstream}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowInput:
    """One input of a run. The default applies only if the input is not required."""

    name: str
    is_required: bool = True
    default: Any = None
