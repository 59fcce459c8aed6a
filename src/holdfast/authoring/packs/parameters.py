"""Parameters that a pack declares for an action, attached to a function as its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.authoring.context import Context

KINDS: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list[Any],
    "object": dict[str, Any],
    "any": Any,
}
FIELDS = ("type", "required", "default", "description")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One input of an action. It may be left out if it has a default or is not required; then it is the default."""

    name: str
    type: str = "any"
    is_required: bool = True
    default: Any = None


def with_parameters(function: Callable[..., Any], parameters: tuple[Parameter, ...]) -> Callable[..., Any]:
    """Give `function(ctx, **task_input)` these parameters as its signature: its input is checked and defaults are
    filled in.
    """
    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Context)
    named = [_named(parameter) for parameter in parameters]
    function.__signature__ = inspect.Signature([context, *named])  # type: ignore[attr-defined]
    function.__annotations__ = {"ctx": Context, **{declared.name: declared.annotation for declared in named}}
    return function


def _named(parameter: Parameter) -> inspect.Parameter:
    kind = KINDS[parameter.type]
    default = inspect.Parameter.empty if parameter.is_required else parameter.default
    annotation = kind if parameter.is_required or kind is Any else kind | None
    return inspect.Parameter(parameter.name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def filled(task_input: Mapping[str, Any], parameters: tuple[Parameter, ...]) -> dict[str, Any]:
    """Return the input, completed with defaults."""
    return {parameter.name: parameter.default for parameter in parameters if not parameter.is_required} | dict(
        task_input
    )
