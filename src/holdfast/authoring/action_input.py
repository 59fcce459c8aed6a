"""Decoding of action input: JSON becomes arguments of the types that the function declares.

Types are inspected once, at decoration. A type that no JSON value can become is refused there, not on every attempt.
Defaults are filled in, so the function is always called with all its names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from pathlib import PurePath
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec

Read = Callable[[bytes], dict[str, Any]]

_PLAIN = frozenset(
    {str, int, float, bool, NoneType, list, dict, bytes, datetime, date, time, timedelta, UUID, Decimal},
)
_JSON: tuple[Any, ...] = ("", 0, 0.0, True, None, [], {})
"""One example of each kind of JSON value."""
_SAFE_DEFAULTS = (NoneType, bool, int, float, str)


def hints_of(function: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> dict[str, Any]:
    """Return the types of the parameters that can be resolved; an unresolvable one does not affect the others."""
    names = _scope_of(function)
    found: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.annotation is not parameter.empty:
            alone = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
            try:
                found |= get_type_hints(alone, globalns=names)
            except Exception:  # noqa: BLE001 - an annotation may be any expression; one that fails gives no type
                continue
    return found


def _scope_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the namespace in which the function's annotations are evaluated."""
    inner = inspect.unwrap(function.func if isinstance(function, partial) else function)
    scope: dict[str, Any] = getattr(inner, "__globals__", None) or getattr(type(inner).__call__, "__globals__", {})
    return scope


def readable(hint: Any) -> Any:
    """Return the type as which a value is decoded: the hint itself, or Any if msgspec does not support it."""
    if hint is object:
        return Any
    if _is_plain(hint):
        return hint
    try:
        msgspec.json.Decoder(hint)
    except (TypeError, ValueError):
        return Any
    return hint


def undecodable_class(hint: Any) -> type | None:
    """Return a class that a value of this type requires and that no JSON can become; None if there is none."""
    if _is_plain(hint):
        return None
    # Imported here because it is rarely needed, and every worker start waits for top-level imports.
    from msgspec import inspect as msgspec_inspect

    seen: set[int] = set()

    def classes(of: Any) -> Iterator[type]:
        if id(of) in seen:
            return
        seen.add(id(of))
        if isinstance(of, msgspec_inspect.CustomType):
            yield of.cls
        for inner in _parts(of):
            yield from classes(inner)

    return next((kind for kind in classes(msgspec_inspect.type_info(hint)) if not _is_decodable(kind)), None)


def _parts(of: Any) -> Iterable[Any]:
    """Return the component types of a msgspec type; of a struct, only those of its required fields."""
    if (fields := getattr(of, "fields", None)) is not None:
        return [field.type for field in fields if field.required]
    single = [getattr(of, name, None) for name in ("type", "item_type", "key_type", "value_type")]
    return [part for part in (*single, *getattr(of, "item_types", ()), *getattr(of, "types", ())) if part is not None]


def _is_decodable(kind: type) -> bool:
    if not isinstance(kind, type):
        return True
    if issubclass(kind, PurePath) or callable(getattr(kind, "model_validate", None)):
        return True
    try:
        return any(isinstance(value, kind) for value in _JSON)
    except TypeError:  # a protocol without isinstance support
        return False


def _made(kind: type, value: Any) -> Any:
    """Build values of types that msgspec does not know: paths from text, models by their own `model_validate`."""
    if isinstance(kind, type) and issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    if callable(validate := getattr(kind, "model_validate", None)):
        return validate(value)
    return value


def reader(
    types: Mapping[str, Any],
    parameters: Iterable[inspect.Parameter],
    *,
    takes_more: bool,
    reserved: str | None,
    refusal: Callable[[bytes, str], Exception],
) -> Read:
    """Return a function that decodes stored input into arguments.

    Unknown names are refused, or passed on with `takes_more`. `refusal` builds the error for an invalid input. Every
    attempt runs this function, so it is one call without a loop.
    """
    shape = msgspec.defstruct(
        "Input",
        [_field(types.get(parameter.name, Any), parameter) for parameter in parameters],
        kw_only=True,
        gc=False,
        forbid_unknown_fields=not takes_more,
    )
    read = msgspec.json.Decoder(shape, dec_hook=_made).decode
    read_all = msgspec.json.Decoder(dict[str, Any]).decode
    arguments = msgspec.structs.asdict

    def decode(given: bytes) -> dict[str, Any]:
        try:
            return arguments(read(given))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise refusal(given, str(error)) from error

    def decode_with_more(given: bytes) -> dict[str, Any]:
        named = decode(given)
        everything = read_all(given)
        if reserved in everything:
            raise refusal(given, "")
        return everything | named

    return decode_with_more if takes_more else decode


def checker(types: Mapping[str, Any], parameters: Iterable[inspect.Parameter]) -> Callable[[bytes], Any] | None:
    """Return a function that decodes input as an attempt would, to validate it; None if every parameter accepts
    anything.
    """
    named = [parameter for parameter in parameters if types.get(parameter.name, Any) is not Any]
    if not named:
        return None
    fields: list[Any] = [(parameter.name, types[parameter.name], None) for parameter in named]
    return msgspec.json.Decoder(msgspec.defstruct("Input", fields, kw_only=True, gc=False), dec_hook=_made).decode


def _field(kind: Any, parameter: inspect.Parameter) -> tuple[str, Any] | tuple[str, Any, Any]:
    default = parameter.default
    if default is parameter.empty:
        return parameter.name, kind
    if type(default) in _SAFE_DEFAULTS:
        return parameter.name, kind, default
    # Pass the very same object, as Python itself would: msgspec copies some defaults and refuses others.
    return parameter.name, kind, msgspec.field(default_factory=lambda: default)


def _is_plain(hint: Any) -> bool:
    """Return whether msgspec certainly supports a type.

    Most types are simple, and a full inspection costs a millisecond.
    """
    if hint is Any or (isinstance(hint, type) and hint in _PLAIN):
        return True
    origin, inner = get_origin(hint), get_args(hint)
    if origin is list:
        return all(map(_is_plain, inner))
    if origin is dict:
        return inner[0] is str and _is_plain(inner[1])
    is_union = origin is Union or origin is UnionType
    return is_union and len(inner) == 2 and NoneType in inner and all(map(_is_plain, inner))
