"""Execution path of a task: text segments from the flow down to the attempt."""

from __future__ import annotations

from collections.abc import Sequence

_ATTEMPT = "attempt:"


def execution_path(
    *,
    task_id: str,
    attempt: int,
    flow: str | None = None,
    run_id: str | None = None,
    node: str | None = None,
    item: int | None = None,
) -> list[str]:
    """Build the path of one attempt. A task outside a flow has only its task and attempt segments.

    A task without an attempt yet (`attempt` 0) has no attempt segment.
    """
    places = (("flow", flow), ("run", run_id), ("node", node), ("item", item), ("task", task_id))
    segments = [f"{kind}:{name}" for kind, name in places if name is not None]
    return [*segments, f"{_ATTEMPT}{attempt}"] if attempt else segments


def replace_attempt_segment(path: Sequence[str], next_attempt: int) -> list[str]:
    """Copy the path with its attempt segment renumbered; a path without one is copied unchanged.

    If the path contains several attempts, the last one is the task's own.
    """
    renumbered = list(path)
    for index in reversed(range(len(renumbered))):
        if renumbered[index].startswith(_ATTEMPT):
            renumbered[index] = f"{_ATTEMPT}{next_attempt}"
            break
    return renumbered
