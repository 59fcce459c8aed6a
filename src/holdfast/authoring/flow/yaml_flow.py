"""Flows written in YAML: the same definition, with the same digest, as an equivalent function.

The keys are those of a stored definition, as `holdfast flow show -o json` prints it, plus short forms: `bind`, `after`,
`when` and `timeout` of a node, `output` of the flow. Every error names file and line, node or edge.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Protocol

from holdfast.authoring.flow.drafting import Source, edges_into
from holdfast.codec.yaml_reader import Block, Items, read_yaml, refuse
from holdfast.core.flows.condition import Condition, Operator
from holdfast.core.flows.graph import DEFINITION_BYTES_MAX, FlowDefinition
from holdfast.core.flows.graph_json import SHAPE_ERRORS, edge_of, input_of, node_of
from holdfast.core.flows.known_ports import Ports, check_against
from holdfast.core.flows.nodes import RUN_INPUT, RUN_OUTPUT, Edge, FlowInput, Node, NodeKind
from holdfast.core.flows.ports import Port
from holdfast.core.flows.refusal import shown
from holdfast.core.values.duration import seconds_of
from holdfast.errors import Invalid

_FLOW_KEYS = ("name", "version", "inputs", "nodes", "edges", "output")
_NODE_KEYS = (*(field.name for field in fields(Node)), "bind", "after", "when", "timeout")
_EDGE_KEYS = ("upstream", "downstream", "bindings", "is_order_only")
_INPUT_KEYS = ("name", "is_required", "default")
_WHEN_KEYS = ("value_of", "operator", "value")
_SOURCE_KEYS = ("node", "key")


class KnownFlow(Protocol):
    """What a flow that runs another one needs to know about it, without tracing it."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def inputs(self) -> tuple[FlowInput, ...]: ...


def flow_files(path: str | Path) -> list[Path]:
    """Return the file itself, or the YAML files of a folder in order of name."""
    found = Path(path)
    if found.is_dir():
        return sorted(file for file in found.iterdir() if file.suffix in (".yaml", ".yml"))
    return [found]


def read_flow(path: str | Path, ports: Ports | None = None, flows: Ports | None = None) -> FlowDefinition:
    """Read and validate the flow in a file.

    `ports` and `flows` give, by name, the parameters of actions and of nested flows, where these are known.
    """
    file = Path(path)
    try:
        with file.open("rb") as opened:
            text = opened.read(DEFINITION_BYTES_MAX + 1)
    except OSError as error:
        raise Invalid(
            f"{file} cannot be read: {error.strerror}.",
            code="file_unreadable",
            advice="Check the path.",
            file=str(file),
        ) from error
    is_in_pack = file.resolve().parent.name == "flows"
    default_name = f"{file.resolve().parent.parent.name}.{file.stem}" if is_in_pack else None
    return parse_flow(text, file=str(file), default_name=default_name, ports=ports, flows=flows)


def read_flows(files: Iterable[Path], ports: Ports, known: Iterable[KnownFlow]) -> list[FlowDefinition]:
    """Read and validate the flows in some files; they may run one another and the `known` flows."""
    paths = list(files)
    flows = ports_of([*known, *(read_flow(path) for path in paths)])
    return [read_flow(path, ports, flows) for path in paths]


def ports_of(flows: Iterable[KnownFlow]) -> Ports:
    """Return the parameters of flows by name; of several versions the newest counts."""
    newest = sorted(flows, key=lambda flow: flow.version)
    return {
        flow.name: tuple(Port(key=flow_input.name, is_required=flow_input.is_required) for flow_input in flow.inputs)
        for flow in newest
    }


def parse_flow(
    text: bytes,
    *,
    file: str,
    default_name: str | None = None,
    ports: Ports | None = None,
    flows: Ports | None = None,
) -> FlowDefinition:
    """Parse and validate a flow; `file` names it in errors."""
    document = read_yaml(text, file=file, bytes_max=DEFINITION_BYTES_MAX)
    if not isinstance(document, Block):
        raise refuse(file, 1, "DEFINITION_INVALID", "It is not a mapping.", "Begin with `name:` and `nodes:`.")
    return _Document(file, document).definition(default_name, ports or {}, flows or {})


class _Document:
    """One file being read. `_node_lines` and `_edge_lines` record the line of each node and edge, for later errors."""

    def __init__(self, file: str, document: Block) -> None:
        self._file = file
        self._document = document
        self._node_lines: dict[str, int] = {}
        self._edge_lines: dict[str, int] = {}
        self._names: frozenset[str] = frozenset()

    def definition(self, default_name: str | None, ports: Ports, flows: Ports) -> FlowDefinition:
        document = self._document
        self._known(document, _FLOW_KEYS, "flow")
        if "name" not in document and default_name is None:
            raise self._invalid(document.line, "The flow has no name.", "Add `name:`.")
        blocks = [block for block, _ in self._blocks("nodes", ("name",))]
        self._names = frozenset(block["name"] for block in blocks if isinstance(block.get("name"), str))
        nodes: list[Node] = []
        edges: list[Edge] = []
        for block in blocks:
            node, into = self._node(block)
            nodes.append(node)
            edges += into
        edges += [self._edge(block) for block, _ in self._blocks("edges", ("upstream", "downstream"))]
        edges += self._output()
        inputs = tuple(self._inputs())
        definition = FlowDefinition(
            name=document.get("name", default_name or ""),
            version=document.get("version", 1),
            nodes=tuple(nodes),
            edges=tuple(edges),
            inputs=inputs,
        )
        known = {node.name: ports.get(node.action) for node in nodes if node.kind in (NodeKind.TASK, NodeKind.MAP)}
        known |= {node.name: flows.get(node.action) for node in nodes if node.kind is NodeKind.FLOW}
        try:
            return check_against(definition, known)
        except Invalid as error:
            raise self._located(error) from error

    def _node(self, block: Block) -> tuple[Node, list[Edge]]:
        self._known(block, _NODE_KEYS, "node")
        name = block["name"]
        where = f"node {shown(name)}"
        self._node_lines.setdefault(str(name), block.line)
        plain = {key: value for key, value in block.items() if key not in ("bind", "after", "when", "timeout")}
        plain.setdefault("action", None)
        plain["inputs"] = self._ports(block)
        if "timeout" in block:
            plain["timeout_seconds"] = self._seconds(block)
        try:
            node = node_of(plain)
        except SHAPE_ERRORS as error:
            raise self._invalid(block.line, f"The {where} is malformed: {shown(str(error))}.") from error
        if (condition := self._condition(block)) is not None:
            node = replace(node, condition=condition)
        after = self._texts(block, "after")
        edges = edges_into(node.name, self._sources(block, "bind"), after=after, condition=condition)
        for edge in edges:
            self._edge_lines.setdefault(str(edge), block.line)
        return node, edges

    def _ports(self, block: Block) -> list[Any] | None:
        """Return the declared ports; a port may be given by its name only."""
        declared = block.get("inputs")
        if not isinstance(declared, list):
            return declared
        return [{"key": port} if isinstance(port, str) else port for port in declared]

    def _seconds(self, block: Block) -> float:
        if "timeout_seconds" in block:
            raise self._invalid(block.lines["timeout"], "The node has timeout and timeout_seconds.", "Keep one.")
        try:
            return seconds_of(block["timeout"])
        except Invalid as error:
            raise self._invalid(block.lines["timeout"], error.detail, error.advice) from error

    def _condition(self, block: Block) -> Condition | None:
        raw = block.get("when")
        if raw is None:
            return None
        line = block.lines["when"]
        if "condition" in block:
            raise self._invalid(line, "The node has when and condition.", "Keep one.")
        parts = raw if isinstance(raw, Block) and "value_of" in raw else {"value_of": raw}
        if isinstance(parts, Block):
            self._known(parts, _WHEN_KEYS, "condition")
        upstream, key = self._source(parts["value_of"], line)
        try:
            operator = Operator(parts.get("operator", Operator.TRUTHY))
        except ValueError:
            raise refuse(
                self._file,
                line,
                "CONDITION_INVALID",
                f"{shown(parts.get('operator'))} is not an operator.",
                f"Choose one of {', '.join(Operator)}.",
                node=block["name"],
            ) from None
        return Condition(upstream=upstream, output_key=key, operator=operator, value=parts.get("value"))

    def _sources(self, block: Block, key: str) -> Iterator[Source]:
        """Read `input: node.key`; a list of sources makes a list port."""
        raw = block.get(key)
        if raw is None:
            return
        if not isinstance(raw, Block):
            raise self._invalid(
                block.lines[key], f"{key} is not a mapping of inputs to sources.", "Write `input: node.key`."
            )
        for input_key, source in raw.items():
            line = raw.lines[input_key]
            if isinstance(source, list):
                for index, entry in enumerate(source):
                    yield Source(f"{input_key}[{index}]", *self._source(entry, line))
            else:
                yield Source(input_key, *self._source(source, line))

    def _source(self, raw: Any, line: int) -> tuple[str, str]:
        """Read `node`, `node.key`, `$input.key`, or `{node: …, key: …}` for names that contain dots.

        The longest node name that the text begins with wins. An unknown name is left for the validation to refuse.
        """
        if isinstance(raw, Block):
            self._known(raw, _SOURCE_KEYS, "source")
            return str(raw.get("node", "")), str(raw.get("key", ""))
        if not isinstance(raw, str):
            raise self._invalid(line, f"{shown(raw)} is not a source.", "Write `node`, `node.key` or `$input.key`.")
        if raw in self._names or raw == RUN_INPUT:
            return raw, ""
        at = len(raw)
        while (at := raw.rfind(".", 0, at)) > 0:
            if raw[:at] in self._names or raw[:at] == RUN_INPUT:
                return raw[:at], raw[at + 1 :]
        upstream, _, key = raw.partition(".")
        return upstream, key

    def _output(self) -> list[Edge]:
        raw = self._document.get("output")
        if raw is None:
            return []
        line = self._document.lines["output"]
        if isinstance(raw, Block) and not ("node" in raw and raw.keys() <= set(_SOURCE_KEYS)):
            sources = list(self._sources(self._document, "output"))
        elif isinstance(raw, Items):
            sources = [Source(f"[{index}]", *self._source(entry, line)) for index, entry in enumerate(raw)]
        else:
            sources = [Source("", *self._source(raw, line))]
        edges = edges_into(RUN_OUTPUT, sources)
        for edge in edges:
            self._edge_lines.setdefault(str(edge), line)
        return edges

    def _edge(self, block: Block) -> Edge:
        self._known(block, _EDGE_KEYS, "edge")
        try:
            edge = edge_of(block)
        except SHAPE_ERRORS as error:
            said = "bindings are pairs of an output and an input, [[rows, orders]]"
            raise self._invalid(block.line, f"The edge is malformed: {shown(str(error))}.", said) from error
        # Record the last line: of two equal edges, the second is the duplicate.
        self._edge_lines[str(edge)] = block.line
        return edge

    def _inputs(self) -> Iterator[FlowInput]:
        raw = self._document.get("inputs")
        if raw is None:
            return
        if not isinstance(raw, Items):
            raise self._invalid(self._document.lines["inputs"], "inputs is not a list.", "Write `- day` for each.")
        for entry, line in zip(raw, raw.lines, strict=True):
            if isinstance(entry, Block):
                self._known(entry, _INPUT_KEYS, "input")
                yield input_of({"name": None, "is_required": "default" not in entry, **entry})
            elif isinstance(entry, str):
                yield FlowInput(name=entry)
            else:
                raise self._invalid(
                    line, f"{shown(entry)} is not an input.", "Write its name, or `{name: …, default: …}`."
                )

    def _blocks(self, key: str, required: Collection[str]) -> Iterator[tuple[Block, int]]:
        raw = self._document.get(key)
        if raw is None:
            return
        if not isinstance(raw, Items):
            raise self._invalid(self._document.lines[key], f"{key} is not a list.", "Begin each with `- `.")
        for entry, line in zip(raw, raw.lines, strict=True):
            if not isinstance(entry, Block) or any(name not in entry for name in required):
                raise self._invalid(line, f"One of the {key} has no {' and no '.join(required)}.")
            yield entry, line

    def _texts(self, block: Block, key: str) -> list[str]:
        raw = block.get(key, [])
        texts = [raw] if isinstance(raw, str) else raw
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise self._invalid(block.lines[key], f"{key} is not a list of names.", "Write `after: [prepare]`.")
        return list(texts)

    def _known(self, block: Block, keys: tuple[str, ...], what: str) -> None:
        for key in block:
            if key not in keys:
                near = difflib.get_close_matches(key, keys, n=1)
                advice = f"Did you mean {near[0]}?" if near else f"Its fields are {', '.join(keys)}."
                raise self._invalid(block.lines[key], f"A {what} has no field {shown(key)}.", advice)

    def _invalid(self, line: int, detail: str, advice: str = "") -> Invalid:
        return refuse(self._file, line, "DEFINITION_INVALID", detail, advice)

    def _located(self, error: Invalid) -> Invalid:
        found = error.fields
        cycle = found.get("cycle") or [None]
        line = self._edge_lines.get(str(found.get("edge"))) or self._node_lines.get(str(found.get("node") or cycle[0]))
        line = line or self._document.line
        return Invalid(
            f"{self._file}:{line}: {error.detail}",
            code=error.code,
            advice=error.advice,
            **{**found, "file": self._file, "line": line},
        )
