"""Assembly of several values into one input: static config first, then bindings in edge order.

A port is a list port if its node declares it as one, or if any binding or config key addresses an index of it. This is
the only rule for two values on one port. Validating a definition and resolving an input both use it, so they cannot
disagree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from holdfast.core.flows.nodes import Binding, Edge, Node
from holdfast.core.flows.ports import Slot, output_slot_of, slot_of
from holdfast.core.flows.refusal import refusal, shown
from holdfast.errors import Invalid


class Absent:
    """The value of an upstream that ended without one: null at an addressed list index, otherwise left out."""

    __slots__ = ()


ABSENT: Final = Absent()


class InputBuilder:
    """One input under construction. Values arrive config first, then in edge order.

    On a list port, a value without an index goes after the last index used so far. Absent values use an index too, so
    that skipped upstreams never move other values past an addressed index. An absent value at an addressed index is
    None, because its neighbours are identified by their index.
    """

    __slots__ = ("_lengths", "_list_keys", "_lists", "_values")

    def __init__(self, list_keys: Collection[str]) -> None:
        self._list_keys = list_keys
        self._lists: dict[str, dict[int, Any]] = {}
        self._lengths: dict[str, int] = {}
        self._values: dict[str, Any] = {}

    def put(self, slot: Slot, value: Any) -> bool:
        """Put a value into a slot; return False if the slot is taken."""
        if slot.key not in self._list_keys:
            if slot.key in self._values:
                return False
            self._values[slot.key] = value
            return True
        places = self._lists.setdefault(slot.key, {})
        length = self._lengths.get(slot.key, 0)
        index = length if slot.index is None else slot.index
        if index in places:
            return False
        places[index] = None if value is ABSENT and slot.index is not None else value
        self._lengths[slot.key] = max(length, index + 1)
        return True

    def extend(self, key: str, values: list[Any]) -> None:
        """Fill a list port with a static list."""
        self._lists[key] = dict(enumerate(values))
        self._lengths[key] = len(values)

    def has(self, key: str) -> bool:
        """Return whether any value, even an absent one, was put on this port."""
        return key in self._values or key in self._lists

    def finished(self, *, keeps_absent: bool = False) -> dict[str, Any]:
        """Return the built object.

        Absent values are left out, or None with `keeps_absent`. Holes of lists are dropped, and a list port that got
        only absent values is [].
        """
        if keeps_absent:
            built = {key: None if value is ABSENT else value for key, value in self._values.items()}
        else:
            built = {key: value for key, value in self._values.items() if value is not ABSENT}
        for key, places in self._lists.items():
            built[key] = [places[index] for index in sorted(places) if places[index] is not ABSENT]
        return built


def list_keys(node: Node, incoming: Iterable[Edge]) -> frozenset[str]:
    """Return the list ports of a node: the declared ones, and those addressed by index."""
    declared = {port.key for port in node.inputs or () if port.is_list}
    used = [*node.config, *(binding.input_key for edge in incoming for binding in edge.bindings)]
    slots = [slot_of(key) for key in used if "[" in key]
    return frozenset(declared | {slot.key for slot in slots if slot is not None})


def put_config(node: Node, assembly: InputBuilder, keys: frozenset[str]) -> None:
    """Put a node's static input first: whole lists before single indexes, whatever the order of the keys."""
    for slot, key in sorted(config_slots(node), key=lambda pair: (pair[0].key, -1 if pair[0].index is None else 0)):
        value = node.config[key]
        if slot.index is not None or slot.key not in keys:
            if not assembly.put(slot, value):
                raise conflict(node.name, key, "config")
        elif isinstance(value, list):
            assembly.extend(slot.key, value)
        else:
            raise refusal(
                "DAG_VALIDATION_BINDING_LIST_PAYLOAD_INVALID",
                f"Node {node.name}: {slot.key} is a list port, but its config is {type(value).__name__}.",
                "Give a list, or address one place of it.",
                node=node.name,
                input_key=slot.key,
            )


def put_binding(assembly: InputBuilder, edge: Edge, binding: Binding, value: object) -> None:
    """Put one bound value, or raise if its slot is taken."""
    slot = slot_of(binding.input_key)
    if slot is None:
        raise bad_input_key(edge, binding, "it is not an input key")
    if not assembly.put(slot, value):
        raise conflict(edge.downstream, binding.input_key, f"edge {edge}")


def output_list_keys(incoming: Iterable[Edge]) -> frozenset[str]:
    """Return the keys of a run's output that are lists; an empty key is the whole output."""
    keys = (binding.input_key for edge in incoming for binding in edge.bindings)
    return frozenset(slot.key for key in keys if "[" in key and (slot := output_slot_of(key)) is not None)


def put_output(assembly: InputBuilder, edge: Edge, binding: Binding, value: object) -> Slot:
    """Put one value of a run's output and return its slot."""
    slot = output_slot_of(binding.input_key)
    if slot is None:
        raise bad_input_key(edge, binding, "it is not a key of an output")
    if not assembly.put(slot, value):
        raise conflict(edge.downstream, binding.input_key, f"edge {edge}")
    return slot


def config_slots(node: Node) -> list[tuple[Slot, str]]:
    """Return the slots of a node's static input with their keys."""
    slots: list[tuple[Slot, str]] = []
    for key in node.config:
        slot = slot_of(key)
        if slot is None:
            raise refusal(
                "DAG_VALIDATION_BINDING_INPUT_KEY_MISSING",
                f"Node {node.name} has config for {shown(key)}, which is not an input key.",
                node=node.name,
                input_key=key,
            )
        slots.append((slot, key))
    return slots


def bad_input_key(edge: Edge, binding: Binding, why: str) -> Invalid:
    """Build the error for a binding to an input that does not exist."""
    return refusal(
        "DAG_VALIDATION_BINDING_INPUT_KEY_MISSING",
        f"Edge {edge} binds to {shown(binding.input_key)}: {why}.",
        edge=str(edge),
        input_key=binding.input_key,
    )


def conflict(node: str, key: str, where: str) -> Invalid:
    """Build the error for a second value for one slot."""
    return refusal(
        "DAG_VALIDATION_BINDING_INPUT_KEY_CONFLICT",
        f"Node {node} gets {key or 'its complete value'} twice; the second comes from {where}.",
        "Bind it once, or make it a list port.",
        node=node,
        input_key=key,
    )
