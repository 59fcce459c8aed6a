"""Topological order and reachability of a directed graph, deterministic and in linear time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

Neighbours = Mapping[str, Sequence[str]]


def topological(names: Sequence[str], upstream: Neighbours, downstream: Neighbours) -> tuple[str, ...]:
    """Order every node after its upstreams, ties in the order of `names`; nodes on or behind a cycle are left out."""
    pending = {name: len(upstream[name]) for name in names}
    order = [name for name in names if not pending[name]]
    for name in order:
        for follower in downstream[name]:
            pending[follower] -= 1
            if not pending[follower]:
                order.append(follower)
    return tuple(order)


def cycle_among(names: Sequence[str], upstream: Neighbours) -> tuple[str, ...]:
    """Return one cycle in the direction of its edges; `names` are the nodes that no topological order reached."""
    left = set(names)
    seen: dict[str, int] = {}
    walk: list[str] = []
    name = names[0]
    while name not in seen:
        seen[name] = len(walk)
        walk.append(name)
        name = next(predecessor for predecessor in upstream[name] if predecessor in left)
    return tuple(reversed(walk[seen[name] :]))


def reachable(roots: Iterable[str], downstream: Neighbours) -> set[str]:
    """Return the roots and everything downstream of them."""
    found = set(roots)
    pending = list(found)
    while pending:
        for follower in downstream[pending.pop()]:
            if follower not in found:
                found.add(follower)
                pending.append(follower)
    return found
