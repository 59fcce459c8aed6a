"""Values inside a flow while it is traced: each has a name but no content, because no run exists yet.

A reference can be bound to an input, indexed by a key, and compared to form a condition. Every operation that needs its
content is refused with advice, so that a flow cannot decide anything on a value that it does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.codec import json_codec
from holdfast.core.flows.condition import Condition, Operator
from holdfast.core.flows.nodes import RUN_INPUT
from holdfast.core.flows.refusal import refusal, shown
from holdfast.core.values.bounds import INPUT_BYTES_MAX
from holdfast.errors import Invalid

if TYPE_CHECKING:
    from holdfast.authoring.flow.trace import Trace

_TRUTH = "Run a node on a condition, `action.when(value)(…)`, or decide inside an action."
_WHOLE = "Bind it to an action and do this there."


class Reference:
    """A run's input, a node's output, or one key of either."""

    __slots__ = ("_key", "_trace", "_upstream")

    def __init__(self, trace: Trace, upstream: str, key: str = "") -> None:
        self._trace = trace
        self._upstream = upstream
        self._key = key

    def __repr__(self) -> str:
        return f"<{_said(self)} of flow {self._trace.flow}, known only in a run>"

    def __getitem__(self, key: object) -> Reference:
        if self._key and self._upstream == RUN_INPUT:
            raise _unknown(
                self, f"is indexed by {shown(key)}", "Bind the complete input and select the part in an action."
            )
        if self._key:
            raise _unknown(
                self,
                f"is indexed by {shown(key)}",
                "A binding selects one key of an output; select deeper parts in an action.",
            )
        if not isinstance(key, str):
            raise _unknown(self, f"is indexed by {shown(key)}", f"An output is indexed by a string key. {_WHOLE}")
        return Reference(self._trace, self._upstream, key)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise _unknown(self, f"is accessed as .{name}", f'Index it: …["{name}"].')

    def __eq__(self, other: object) -> ReferenceComparison:  # type: ignore[override]
        return _compared(self, Operator.EQUALS, other)

    def __ne__(self, other: object) -> ReferenceComparison:  # type: ignore[override]
        return _compared(self, Operator.NOT_EQUALS, other)

    def __lt__(self, other: object) -> ReferenceComparison:
        return _compared(self, Operator.LESS, other)

    def __le__(self, other: object) -> ReferenceComparison:
        return _compared(self, Operator.LESS_OR_EQUAL, other)

    def __gt__(self, other: object) -> ReferenceComparison:
        return _compared(self, Operator.GREATER, other)

    def __ge__(self, other: object) -> ReferenceComparison:
        return _compared(self, Operator.GREATER_OR_EQUAL, other)

    def __invert__(self) -> ReferenceComparison:
        """`~value`: the value is false, empty, zero or null."""
        return _compared(self, Operator.FALSY, None)

    def is_in(self, values: object) -> ReferenceComparison:
        """The value is one of these."""
        return _compared(self, Operator.IN, values)

    def contains(self, value: object) -> ReferenceComparison:
        """The value is a list with this item, or an object with this key."""
        return _compared(self, Operator.CONTAINS, value)


class ReferenceComparison:
    """The argument of `action.when(…)`. It has no truth value while the flow is traced."""

    __slots__ = ("_subject", "condition")

    def __init__(self, subject: Reference, condition: Condition) -> None:
        self._subject = subject
        self.condition = condition

    def __repr__(self) -> str:
        return f"<{_said(self._subject)} {self.condition.operator} {shown(self.condition.value)}>"

    def __invert__(self) -> ReferenceComparison:
        operator = _OPPOSITES.get(self.condition.operator)
        if operator is None:
            raise _unknown(self._subject, f"is negated with the operator {self.condition.operator}", _WHOLE)
        return _compared(self._subject, operator, self.condition.value)

    def __bool__(self) -> NoReturn:
        raise _unknown(self._subject, "is compared, and the result is used as true or false", _TRUTH)

    def __and__(self, other: object) -> NoReturn:
        raise _unknown(self._subject, "is compared more than once", f"A node has one condition. {_WHOLE}")

    __or__ = __rand__ = __ror__ = __and__


_OPPOSITES = {
    Operator.TRUTHY: Operator.FALSY,
    Operator.FALSY: Operator.TRUTHY,
    Operator.EQUALS: Operator.NOT_EQUALS,
    Operator.NOT_EQUALS: Operator.EQUALS,
    Operator.LESS: Operator.GREATER_OR_EQUAL,
    Operator.GREATER_OR_EQUAL: Operator.LESS,
    Operator.GREATER: Operator.LESS_OR_EQUAL,
    Operator.LESS_OR_EQUAL: Operator.GREATER,
}


def source_of(reference: Reference) -> tuple[str, str]:
    """Return the reference's node, or `$input`, and its key."""
    return reference._upstream, reference._key


def trace_of(reference: Reference) -> Trace:
    return reference._trace


def condition_of(value: object) -> Condition:
    """Read the argument of `when`: a comparison, or a value that must be true."""
    if isinstance(value, ReferenceComparison):
        return value.condition
    if isinstance(value, Reference):
        return _compared(value, Operator.TRUTHY, None).condition
    raise refusal(
        "DAG_VALIDATION_CONDITION_INVALID",
        f"{shown(value)} is not a condition.",
        'Pass a value of the flow or a comparison of one: `.when(check["ok"])`, `.when(check["count"] > 3)`.',
    )


def plain_constant(value: object, what: str) -> Any:
    """Return a constant as plain JSON for the definition, converted like the input of a task."""
    if value is None or type(value) in (str, int, bool, float):
        return value
    try:
        return json_codec.decode(json_codec.encode(value, bytes_max=INPUT_BYTES_MAX, what="input"))
    except Invalid as error:
        if (hidden := _hidden_reference(value)) is not None:
            raise _unknown(
                hidden,
                f"lies inside an object or a list of lists ({what})",
                "Pass it as an argument of its own, or as an item of a list.",
            ) from None
        raise refusal(
            "DAG_VALIDATION_CONFIG_INVALID",
            f"The constant {what} cannot be stored: {error.detail}",
            "Use strings, finite numbers, true, false, null, lists and objects.",
        ) from error


def _hidden_reference(value: object) -> Reference | None:
    level, seen = [value], 0
    while level and seen < _SEARCHED_MAX:
        item = level.pop()
        seen += 1
        if isinstance(item, Reference):
            return item
        if isinstance(item, dict):
            level.extend([*item, *item.values()])
        elif isinstance(item, list | tuple):
            level.extend(item)
    return None


_SEARCHED_MAX = 100_000


def _compared(subject: Reference, operator: Operator, value: object) -> ReferenceComparison:
    if isinstance(value, Reference | ReferenceComparison):
        raise _unknown(subject, "is compared with another value", "Compare with a constant, or compare in an action.")
    upstream, key = source_of(subject)
    constant = plain_constant(value, f"compared with {_said(subject)}")
    return ReferenceComparison(subject, Condition(upstream=upstream, output_key=key, operator=operator, value=constant))


def _said(reference: Reference) -> str:
    upstream, key = source_of(reference)
    if upstream == RUN_INPUT:
        return f"the input {key}"
    return f'{upstream}["{key}"]' if key else f"the output of {upstream}"


def _opening(said: str) -> str:
    """Capitalize the description for the beginning of a sentence; a user's name stays as it is written."""
    return f"T{said[1:]}" if said.startswith("the ") else said


def _unknown(reference: Reference, what: str, advice: str) -> Invalid:
    said = _said(reference)
    return refusal(
        "DAG_VALIDATION_VALUE_UNKNOWN",
        f"{_opening(said)} {what} while flow {trace_of(reference).flow} is traced, before a run provides it.",
        advice,
        flow=trace_of(reference).flow,
    )


def _refusing(what: str, advice: str) -> Callable[..., NoReturn]:
    def refuse(self: Reference, *_given: object) -> NoReturn:
        raise _unknown(self, what, advice)

    return refuse


_BINARY = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift", "rshift")
_LOGICAL = ("and", "or", "xor")
_REFUSED: dict[str, tuple[str, str]] = {
    "__bool__": ("is used as true or false", _TRUTH),
    "__iter__": ("is iterated", "Run an action once per item: `action.map(name=value)`."),
    "__len__": ("is passed to len()", _WHOLE),
    "__contains__": ("is searched with `in`", "Use `.when(value.contains(item))(…)`."),
    "__str__": ("is turned into text", "Build the text in an action."),
    "__format__": ("is put into a text", "Build the text in an action."),
    "__hash__": ("is used as a key", "Use its name instead."),
    **{f"__{name}__": ("is turned into a number", _WHOLE) for name in ("int", "float", "complex", "index", "round")},
    **{f"__{name}__": ("is used in a calculation", _WHOLE) for name in ("neg", "pos", "abs")},
    **{
        f"__{side}{name}__": ("is used in a calculation", _WHOLE)
        for name in (*_BINARY, *_LOGICAL)
        for side in ("", "r")
    },
}
for _name, (_what, _advice) in _REFUSED.items():
    setattr(Reference, _name, _refusing(_what, _advice))
