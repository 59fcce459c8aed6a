"""Conditions of nodes: one comparison on the output of an upstream, or on the run's input.

A condition is evaluated once, when the trigger rule releases the node. A condition that is false, or whose value is
absent, skips the node. Values that cannot be compared fail the node; the engine never guesses.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, assert_never

from holdfast.errors import Invalid


class Operator(StrEnum):
    """How a condition compares its value."""

    TRUTHY = "truthy"
    FALSY = "falsy"
    EQUALS = "equals"
    NOT_EQUALS = "not_equals"
    LESS = "less"
    LESS_OR_EQUAL = "less_or_equal"
    GREATER = "greater"
    GREATER_OR_EQUAL = "greater_or_equal"
    IN = "in"
    CONTAINS = "contains"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Run the node only if this comparison is true. An empty `output_key` tests the whole output."""

    upstream: str
    output_key: str = ""
    operator: Operator = Operator.TRUTHY
    value: Any = None


def holds(condition: Condition, value: Any) -> bool:
    """Evaluate the condition on a value; `Invalid` (`DAG_VALIDATION_CONDITION_INVALID`) if they cannot be compared."""
    match condition.operator:
        case Operator.TRUTHY:
            return bool(value)
        case Operator.FALSY:
            return not value
        case Operator.EQUALS:
            return _is_same(value, condition.value)
        case Operator.NOT_EQUALS:
            return not _is_same(value, condition.value)
        case Operator.IN:
            return any(_is_same(value, candidate) for candidate in _many(condition, condition.value))
        case Operator.CONTAINS:
            return any(_is_same(condition.value, candidate) for candidate in _many(condition, value))
        case Operator.LESS | Operator.LESS_OR_EQUAL | Operator.GREATER | Operator.GREATER_OR_EQUAL:
            return _is_ordered(condition, value)
        case _:
            assert_never(condition.operator)


_WORDS = {
    Operator.TRUTHY: "is true",
    Operator.FALSY: "is false or empty",
    Operator.EQUALS: "=",
    Operator.NOT_EQUALS: "≠",
    Operator.LESS: "<",
    Operator.LESS_OR_EQUAL: "≤",
    Operator.GREATER: ">",
    Operator.GREATER_OR_EQUAL: "≥",
    Operator.IN: "is one of",
    Operator.CONTAINS: "contains",
}


def describe(condition: Condition) -> str:
    """Format a condition for people: `count.rows > 0`."""
    word = _WORDS[condition.operator]
    if condition.operator in (Operator.TRUTHY, Operator.FALSY):
        return f"{_where(condition)} {word}"
    return f"{_where(condition)} {word} {json.dumps(condition.value, ensure_ascii=False)}"


def _where(condition: Condition) -> str:
    return f"{condition.upstream}.{condition.output_key}" if condition.output_key else condition.upstream


def _is_same(value: Any, other: Any) -> bool:
    """Compare as JSON values: true is not 1."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _many(condition: Condition, values: Any) -> list[Any]:
    if isinstance(values, list | dict):
        return list(values)
    raise _incomparable(condition, values)


def _is_ordered(condition: Condition, value: Any) -> bool:
    limit = condition.value
    are_numbers = _is_number(value) and _is_number(limit)
    if not are_numbers and not (isinstance(value, str) and isinstance(limit, str)):
        raise _incomparable(condition, value)
    match condition.operator:
        case Operator.LESS:
            return bool(value < limit)
        case Operator.LESS_OR_EQUAL:
            return bool(value <= limit)
        case Operator.GREATER:
            return bool(value > limit)
        case _:
            return bool(value >= limit)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _incomparable(condition: Condition, value: Any) -> Invalid:
    return Invalid(
        f"The condition on {_where(condition)} cannot compare {type(value).__name__} "
        f"{condition.operator} {type(condition.value).__name__}.",
        code="DAG_VALIDATION_CONDITION_INVALID",
        advice="Compare numbers with numbers and text with text; in and contains need a list.",
        upstream=condition.upstream,
        output_key=condition.output_key,
    )
