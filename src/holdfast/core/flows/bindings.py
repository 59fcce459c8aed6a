"""Construction of a node's input from its static config, the run's input and the outputs of its upstreams.

Values arrive decoded. Every fault is `Invalid` with its own code, raised when the node's attempt starts: the node fails
with a clear cause, and the run still ends. An upstream that ended without completing is absent. Under all_done and
one_success its bindings leave their keys out (the action's default applies, or the action's own check refuses the
input) and drop out of lists. Under all_success no upstream can be absent, so a missing output is a fault.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from holdfast.core.flows.condition import Condition, holds
from holdfast.core.flows.input_builder import (
    ABSENT,
    InputBuilder,
    list_keys,
    output_list_keys,
    put_binding,
    put_config,
    put_output,
)
from holdfast.core.flows.nodes import RUN_INPUT, RUN_OUTPUT, Edge, FlowInput, Node, TriggerRule
from holdfast.core.flows.ports import LIST_ITEMS_MAX
from holdfast.core.flows.refusal import refusal, some_of


def accept_run_input(inputs: Sequence[FlowInput], supplied: Mapping[str, Any]) -> dict[str, Any]:
    """Complete a run's input with its defaults; refuse unknown and missing names."""
    names = {flow_input.name for flow_input in inputs}
    unknown = sorted(str(name) for name in supplied if name not in names)
    missing = [flow_input.name for flow_input in inputs if flow_input.is_required and flow_input.name not in supplied]
    if unknown or missing:
        raise refusal(
            f"DAG_VALIDATION_RUN_INPUT_{'UNKNOWN' if unknown else 'MISSING'}",
            f"The run's input {'does not take' if unknown else 'needs'} {some_of(unknown or missing)}.",
            f"The flow takes {some_of([flow_input.name for flow_input in inputs])}.",
            input_keys=unknown or missing,
        )
    return {flow_input.name: supplied.get(flow_input.name, flow_input.default) for flow_input in inputs}


def resolve_input(
    node: Node,
    incoming: Sequence[Edge],
    *,
    run_input: Mapping[str, Any],
    outputs: Mapping[str, Any],
    absent: Collection[str] = (),
) -> dict[str, Any]:
    """Build the input of a node whose upstreams are satisfied.

    `outputs` has what completed upstreams returned; `absent` names the upstreams that did not complete, or not yet. A
    condition whose values cannot be compared raises here, because release lets such a node start so that it fails.
    """
    allowed = () if node.trigger_rule is TriggerRule.ALL_SUCCESS else absent
    keys = list_keys(node, incoming)
    assembly = InputBuilder(keys)
    put_config(node, assembly, keys)
    for edge in incoming:
        for binding in edge.bindings:
            value = _value(edge.upstream, node.name, binding.output_key, run_input, outputs, allowed)
            put_binding(assembly, edge, binding, value)
    condition_holds(node, run_input=run_input, outputs=outputs, absent=absent)
    return assembly.finished()


def resolve_output(
    incoming: Sequence[Edge], *, run_input: Mapping[str, Any], outputs: Mapping[str, Any], absent: Collection[str] = ()
) -> Any:
    """Build the output of a run from the edges into `$output`: a value, a list, an object, or None without edges."""
    assembly = InputBuilder(output_list_keys(incoming))
    is_whole = is_bound = False
    for edge in incoming:
        for binding in edge.bindings:
            value = _value(edge.upstream, RUN_OUTPUT, binding.output_key, run_input, outputs, absent)
            is_whole = put_output(assembly, edge, binding, value).key == ""
            is_bound = True
    built = assembly.finished(keeps_absent=True)
    if is_whole:
        return built.get("")
    return built if is_bound else None


def condition_holds(
    node: Node, *, run_input: Mapping[str, Any], outputs: Mapping[str, Any], absent: Collection[str] = ()
) -> bool:
    """Return whether a releasable node's condition holds: True without a condition, False on an absent value.

    Raises `Invalid` if the values cannot be compared; release the node anyway, and `resolve_input` fails its attempt.
    """
    condition = node.condition
    if condition is None:
        return True
    value = _value(condition.upstream, node.name, condition.output_key, run_input, outputs, absent)
    return value is not ABSENT and holds(condition, value)


def output_value(
    condition: Condition,
    node: str,
    run_input: Mapping[str, Any],
    outputs: Mapping[str, Any],
    absent: Collection[str] = (),
) -> Any:
    """Return the value that a condition tests; None if it is absent."""
    value = _value(condition.upstream, node, condition.output_key, run_input, outputs, absent)
    return None if value is ABSENT else value


def map_inputs(node: Node, resolved: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one input per item of a map node, in order; an empty list gives none."""
    assert node.map_over is not None, "only a map node has items"
    items = resolved.get(node.map_over)
    if not isinstance(items, list):
        raise refusal(
            "DAG_VALIDATION_MAP_LIST_INVALID",
            f"Node {node.name} maps over {node.map_over}, which is {type(items).__name__}, not a list.",
            "Bind a list to it.",
            node=node.name,
            input_key=node.map_over,
        )
    if len(items) > LIST_ITEMS_MAX:
        raise refusal(
            "DAG_VALIDATION_MAP_LIST_INVALID",
            f"Node {node.name} maps over {len(items)} items; at most {LIST_ITEMS_MAX} are allowed.",
            "Map over batches.",
            node=node.name,
            input_key=node.map_over,
        )
    return [{**resolved, node.map_over: item} for item in items]


def _value(
    upstream: str,
    downstream: str,
    output_key: str,
    run_input: Mapping[str, Any],
    outputs: Mapping[str, Any],
    absent: Collection[str],
) -> Any:
    """Read one value, or `ABSENT`."""
    edge = f"{upstream} → {downstream}"
    if upstream == RUN_INPUT:
        output: Any = run_input
    elif upstream in outputs:
        output = outputs[upstream]
    elif upstream in absent:
        return ABSENT
    else:
        raise refusal(
            "DAG_VALIDATION_UPSTREAM_OUTPUT_MISSING",
            f"Edge {edge}: {upstream} has no output.",
            "Retry the upstream node.",
            node=downstream,
            edge=edge,
        )
    if output_key == "":
        return output
    if not isinstance(output, Mapping):
        raise refusal(
            "DAG_VALIDATION_UPSTREAM_OUTPUT_INVALID",
            f"Edge {edge} reads {output_key}, but the output of {upstream} is {type(output).__name__}, not an object.",
            "Return an object with this key, or bind the complete output.",
            node=downstream,
            edge=edge,
            output_key=output_key,
        )
    if output_key not in output:
        raise refusal(
            "DAG_VALIDATION_BINDING_OUTPUT_KEY_MISSING",
            f"Edge {edge} reads {output_key}, which the output of {upstream} does not have.",
            f"It has {some_of([str(key) for key in output])}.",
            node=downstream,
            edge=edge,
            output_key=output_key,
        )
    return output[output_key]
