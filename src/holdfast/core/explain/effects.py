"""Explanation lines about effects without an answer and effects that were undone since. Pure."""

from __future__ import annotations

from holdfast.core.explain.evidence import TaskFacts
from holdfast.core.explain.phrases import one_line

UNKNOWN_MAX = 5
"""How many effects without an answer are listed one by one."""


def effect_lines(facts: TaskFacts) -> tuple[str, ...]:
    """Describe what another attempt would meet: effects that are sent again, and effects that are not repeated."""
    return (*_unknown(facts), *_undone(facts))


def _unknown(facts: TaskFacts) -> list[str]:
    """Return one line for each effect without an answer, up to a limit."""
    if not facts.unknown_effects:
        return []
    named = [
        f"effect {one_line(effect)} is unknown: it was started and has no receipt" for effect in facts.unknown_effects
    ]
    more = len(named) - UNKNOWN_MAX
    lines = named[:UNKNOWN_MAX] + ([f"and {more} more effects are unknown"] if more > 0 else [])
    return [*lines, "another attempt would send unknown effects again, under the same key"]


def _undone(facts: TaskFacts) -> list[str]:
    """Return one line for each undone effect, up to a limit, and what that means for another attempt."""
    if not facts.undone_effects:
        return []
    lines = [f"effect {one_line(effect)}" for effect in facts.undone_effects[:UNKNOWN_MAX]]
    return [*lines, "another attempt that requests it under the same key fails with effect_compensated"]
