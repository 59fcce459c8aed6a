"""Flows for tests, written as short as they are read: `a_flow("a>b b>c")`."""

from __future__ import annotations

import sys
from dataclasses import replace

from hypothesis import strategies as st

from holdfast.core.flows.condition import Condition, Operator
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import RUN_INPUT, RUN_OUTPUT, Binding, Edge, FlowInput, Node, NodeKind, TriggerRule
from holdfast.core.flows.ports import Port


def a_node(name="a", action="shop.work", **fields):
    return Node(name=name, action=action, **fields)


def an_edge(ends, *bindings, **fields):
    """`an_edge("a>b", "rows>orders", ">all")`: an empty side is the whole output."""
    upstream, downstream = ends.split(">")
    pairs = (binding.split(">") for binding in bindings)
    bound = tuple(Binding(output_key=key, input_key=target) for key, target in pairs)
    return Edge(upstream=upstream, downstream=downstream, bindings=bound, **fields)


def an_order_edge(ends):
    return an_edge(ends, is_order_only=True)


def a_flow(edges="", *, alone=(), **rules):
    """Order-only edges between nodes named in order of appearance; `rules` gives trigger rules by node."""
    ends = edges.split()
    names = dict.fromkeys(name for pair in ends for name in pair.split(">"))
    nodes = [a_node(name, trigger_rule=rules.get(name, TriggerRule.ALL_SUCCESS)) for name in [*names, *alone] or ["a"]]
    return FlowDefinition(name="shop.nightly", nodes=tuple(nodes), edges=tuple(map(an_order_edge, ends))).validated()


def a_diamond():
    return a_flow("start>left start>right left>end right>end")


def a_choice(operator=Operator.GREATER, value=3):
    """`big` runs only if the number is large; `after` needs it, `anyway` does not."""
    condition = Condition(upstream="count", output_key="n", operator=operator, value=value)
    nodes = (a_node("count"), a_node("big", condition=condition), a_node("after"))
    anyway = a_node("anyway", trigger_rule=TriggerRule.ALL_DONE)
    edges = map(an_order_edge, ("count>big", "big>after", "big>anyway"))
    return FlowDefinition(name="shop.choice", nodes=(*nodes, anyway), edges=tuple(edges)).validated()


def a_sum(parts=3):
    """A number, as many parts of it, and their sum."""
    names = [f"part{number}" for number in range(parts)]
    nodes = [a_node("number"), *(a_node(name, config={"i": i}) for i, name in enumerate(names))]
    nodes.append(a_node("sum", inputs=(Port(key="values", is_list=True),)))
    edges = [an_edge(f"{RUN_INPUT}>number", "x>x"), *(an_edge(f"number>{name}", "v>v") for name in names)]
    edges += [an_edge(f"{name}>sum", "v>values") for name in names]
    edges.append(Edge(upstream="sum", downstream=RUN_OUTPUT, bindings=an_edge("a>b", ">sum").bindings))
    return FlowDefinition(
        name="shop.sum", nodes=tuple(nodes), edges=tuple(edges), inputs=(FlowInput(name="x"),)
    ).validated()


def a_map(concurrency=None):
    """A list, each member of it doubled, and the list of the results."""
    nodes = (
        a_node("list"),
        a_node("double", kind=NodeKind.MAP, map_over="x", concurrency=concurrency, config={"by": 2}),
        a_node("gather"),
    )
    edges = (an_edge("list>double", "all>x"), an_edge("double>gather", ">results"))
    return FlowDefinition(name="shop.map", nodes=nodes, edges=edges).validated()


def a_parent():
    """A flow that runs another and uses what it returns."""
    nodes = (a_node("inner", action="shop.sum", kind=NodeKind.FLOW, config={"x": 3}), a_node("after"))
    return FlowDefinition(name="shop.parent", nodes=nodes, edges=(an_edge("inner>after", "sum>total"),)).validated()


def a_wait(**fields):
    nodes = (
        Node(name="paid", action="payment", kind=NodeKind.WAIT, **fields),
        a_node("ship"),
    )
    return FlowDefinition(name="shop.wait", nodes=nodes, edges=(an_edge("paid>ship", ">payment"),)).validated()


NEVER = Condition(upstream=RUN_INPUT)
"""Does not hold for a run that was given nothing."""
INNER = FlowDefinition(name="any.inner", nodes=(a_node("only"),))


@st.composite
def flows(draw, *, nodes_max=12, is_special=False):
    """Any small flow: nodes in shuffled order, any acyclic edges, any rules; `is_special` with nodes of every kind."""
    count = draw(st.integers(1, nodes_max))
    names = draw(st.permutations([f"n{number}" for number in range(count)]))
    pairs = [(names[low], names[high]) for high in range(count) for low in range(high)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=3 * count)) if pairs else []
    rules = draw(st.lists(st.sampled_from(TriggerRule), min_size=count, max_size=count))
    nodes = tuple(a_node(name, trigger_rule=rule) for name, rule in zip(sorted(names), rules, strict=True))
    if is_special:
        nodes = tuple(draw(of_any_kind(node)) for node in nodes)
    return FlowDefinition(
        name="any", nodes=nodes, edges=tuple(an_order_edge(f"{low}>{high}") for low, high in edges)
    ).validated()


def of_any_kind(node):
    """The same node as a task, two items, a run of `INNER`, a wait, or one that is skipped when its turn comes."""
    limited = st.sampled_from([None, 1])
    return st.one_of(
        st.just(node),
        st.just(replace(node, condition=NEVER)),
        st.just(replace(node, kind=NodeKind.FLOW, action=INNER.name)),
        st.just(replace(node, kind=NodeKind.WAIT, action=f"event.{node.name}", timeout_seconds=86_400)),
        limited.map(lambda n: replace(node, kind=NodeKind.MAP, map_over="x", config={"x": [1, 2]}, concurrency=n)),
    )


def lines_run(work):
    """Count the lines of Python that some work executes: time without a clock."""
    count = 0

    def tracer(frame, event, _):
        nonlocal count
        count += event == "line"
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
