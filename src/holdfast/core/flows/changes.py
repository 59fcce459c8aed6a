"""Differences between two definitions of a flow, in words: the reason why a version is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.core.flows.graph import FlowDefinition


def flow_changes(before: FlowDefinition, after: FlowDefinition) -> list[str]:
    """List the nodes, edges and inputs that were added, removed or changed, with the changed fields."""
    old, new = before.to_json(), after.to_json()
    changes = [
        *_compared("node", _keyed(old["nodes"], "name"), _keyed(new["nodes"], "name")),
        *_compared("edge", _edges(old["edges"]), _edges(new["edges"])),
        *_compared("input", _keyed(old["inputs"], "name"), _keyed(new["inputs"], "name")),
    ]
    if changes:
        return changes
    kinds = [kind for kind in ("nodes", "edges", "inputs") if old[kind] != new[kind]]
    return [f"the order of {' and '.join(kinds)}"] if kinds else []


def _keyed(parts: list[dict[str, Any]], key: str) -> dict[str, dict[str, Any]]:
    return {part[key]: part for part in parts}


def _edges(parts: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {f"{part['upstream']} → {part['downstream']}": part for part in parts}


def _compared(what: str, before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]) -> list[str]:
    changes = [f"{what} {name} was removed" for name in before if name not in after]
    for name, part in after.items():
        if name not in before:
            changes.append(f"{what} {name} was added")
        elif part != (old := before[name]):
            fields = [key for key in {**old, **part} if old.get(key) != part.get(key)]
            changes.append(f"{what} {name} has another {', '.join(fields)}")
    return changes
