"""Input signature of an action, read from its function once, at decoration.

The context parameter is recognized by its type (`hf.Context`, also `hf.Context | None`) or by the name `ctx`, at any
position. All other parameters are input, passed by name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from holdfast.authoring.action_input import checker, hints_of, readable, reader, undecodable_class
from holdfast.core.flows.ports import Port
from holdfast.errors import Invalid

_CONTEXT_NAME = "ctx"


class Signature:
    """The names, types and defaults of an action's input, and the position of its context parameter.

    `decode` converts stored input into arguments by name, of the annotated types. It raises `Invalid` if the input is
    wrong, and passes on whatever the annotated classes raise.
    """

    __slots__ = (
        "_check",
        "_context_key",
        "_context_name",
        "allowed",
        "decode",
        "names",
        "ports",
        "required",
        "takes_any",
    )

    def __init__(self, function: Callable[..., Any]) -> None:
        parameters = list(inspect.signature(function).parameters.values())
        hints = hints_of(function, parameters)
        context = _context_among(function, parameters, hints)
        is_first = bool(parameters) and context is parameters[0] and context.kind is not context.KEYWORD_ONLY
        self._context_name = None if context is None else context.name
        self._context_key = None if is_first else self._context_name
        parameters = [parameter for parameter in parameters if parameter is not context]
        _refuse_positional_only(function, parameters)
        _refuse_reserved(function, parameters)
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self.takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.names = tuple(p.name for p in named)
        self.ports = (
            None if self.takes_any else tuple(Port(key=p.name, is_required=p.default is p.empty) for p in named)
        )
        self.allowed = frozenset(self.names)
        self.required = frozenset(p.name for p in named if p.default is p.empty)
        types = {p.name: _type_of(function, p, hints.get(p.name, Any)) for p in named}
        self.decode = reader(
            types, named, takes_more=self.takes_any, reserved=self._context_name, refusal=self._refusal
        )

        self._check = checker(types, named)

    @property
    def wants_context(self) -> bool:
        return self._context_name is not None

    def placed(self, context: Any, arguments: dict[str, Any]) -> tuple[Any, ...]:
        """Pass the context as the function expects it: return it as first argument, or add it to the named ones."""
        if self._context_key is None:
            return (context,)
        arguments[self._context_key] = context
        return ()

    def check(self, action: str, inputs: Iterable[Mapping[str, Any]]) -> None:
        """Refuse inputs with missing or unknown names."""
        allowed = self.allowed
        for task_input in inputs:
            if task_input.keys() != allowed and not self._has_names(task_input.keys()):
                raise self._wrong_names(task_input.keys(), f"{action} cannot take this input: ")

    def check_types(self, action: str, inputs: Iterable[bytes]) -> None:
        """Refuse encoded inputs that no attempt could decode; `Invalid` (`invalid_input`) names the field."""
        if (check := self._check) is None:
            return
        for task_input in inputs:
            try:
                check(task_input)
            except (ValueError, TypeError) as error:
                why = " ".join(str(error).split())
                raise Invalid(
                    f"{action} cannot take this input: {why.rstrip('.')}.",
                    code="invalid_input",
                    advice="See the types of its parameters.",
                ) from error
            except Exception:  # noqa: BLE001 - a class may need what only a worker has; then the attempt will report it
                continue

    def _has_names(self, names: Iterable[Any]) -> bool:
        return self.required <= set(names) and not self._unknown(names)

    def _unknown(self, names: Iterable[Any]) -> set[Any]:
        return {self._context_name} & set(names) if self.takes_any else set(names) - self.allowed

    def _wrong_names(self, names: Iterable[Any], prefix: str) -> Invalid:
        wrong = {"missing": self.required - set(names), "unknown": self._unknown(names)}
        parts = [f"{word} {', '.join(sorted(map(str, which)))}" for word, which in wrong.items() if which]
        accepted = ", ".join(sorted(self.allowed)) or "nothing"
        return Invalid(f"{prefix}{'; '.join(parts)}.", code="invalid_input", advice=f"It takes {accepted}.")

    def _refusal(self, task_input: bytes, why: str) -> Invalid:
        """Describe an invalid input: all wrong names, or the first value of a wrong type."""
        try:
            names = msgspec.json.decode(task_input, type=dict[str, Any]).keys()
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return Invalid(f"{why}.", code="invalid_input")
        return Invalid(f"{why}.", code="invalid_input") if self._has_names(names) else self._wrong_names(names, "")


def _context_among(
    function: Callable[..., Any], parameters: list[inspect.Parameter], hints: Mapping[str, Any]
) -> inspect.Parameter | None:
    from holdfast.authoring.context import Context

    usable = [
        parameter for parameter in parameters if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    typed = [parameter for parameter in usable if _without_none(hints.get(parameter.name)) is Context]
    if len(typed) > 1:
        raise _refused(
            function,
            f"takes its context in two parameters, {' and '.join(parameter.name for parameter in typed)}",
            "Keep one of them.",
        )
    for parameter in usable:
        if (
            not typed
            and parameter.name == _CONTEXT_NAME
            and _without_none(hints.get(parameter.name, Any)) in (Any, object)
        ):
            return parameter
        if parameter.name not in hints and parameter.default is parameter.empty and _says_context(parameter.annotation):
            raise _refused(
                function,
                f"has the parameter {parameter.name!r} of the type {parameter.annotation!r}, which cannot be resolved",
                "If it is the context, name it ctx, or import hf.Context at run time.",
            )
    return typed[0] if typed else None


def _without_none(hint: Any) -> Any:
    inner = [get_arg for get_arg in get_args(hint) if get_arg is not NoneType]
    return inner[0] if get_origin(hint) in (Union, UnionType) and len(inner) == 1 else hint


def _says_context(annotation: Any) -> bool:
    return isinstance(annotation, str) and "Context" in re.split(r"\W+", annotation)


def _type_of(function: Callable[..., Any], parameter: inspect.Parameter, hint: Any) -> Any:
    """Return the type as which a parameter is decoded.

    Optional parameters are not checked, as only Python callers may use them.
    """
    try:
        kind = readable(hint)
        strange = undecodable_class(kind) if parameter.default is parameter.empty else None
    except (NameError, AttributeError) as error:
        text = f"takes {parameter.name!r} of a type with an annotation that cannot be resolved: {error}"
        raise _refused(function, text, "Import the names that it uses at run time.") from error
    if strange is not None:
        raise _refused(
            function,
            f"takes {parameter.name!r}, which needs the class {strange.__qualname__}, which JSON cannot represent",
            "Take plain values, a dataclass, a TypedDict, a msgspec.Struct or a model with `model_validate`; "
            "or annotate it with Any and construct it in the function.",
        )
    return kind


def _refuse_positional_only(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> None:
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            text = f"has the positional parameter {parameter.name!r}; input is passed by name"
            raise _refused(function, text, "Make it an ordinary or keyword parameter.")


def _refuse_reserved(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> None:
    if any(parameter.name == "connection" for parameter in parameters):
        text = "has a parameter named 'connection', which `client.enqueue` reserves"
        raise _refused(function, text, "Give it another name.")


def _refused(function: Callable[..., Any], text: str, advice: str) -> Invalid:
    name = getattr(function, "__qualname__", None) or repr(function)[:80]
    return Invalid(f"{name} {text}.", code="invalid_action", advice=advice)
