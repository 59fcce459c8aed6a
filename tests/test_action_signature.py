"""What a signature says of its input: names and types, the context in every ordinary spelling, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Optional, Protocol

import pytest

import holdfast as hf
from holdfast.authoring.action_signature import Signature
from holdfast.codec import json_codec
from holdfast.errors import Invalid

if TYPE_CHECKING:
    from nowhere import Context, Unknown

CONTEXT = object()


class Session:
    """A class that no JSON can become."""


class Asked(Protocol):
    def answer(self) -> int: ...


@dataclass
class Item:
    sku: str
    count: int = 1


@dataclass
class Holder:
    session: Session


@dataclass
class LazyHolder:
    name: str
    session: Session = field(default_factory=Session)


@dataclass
class Unresolved:
    what: Unknown


class Model:
    """As pydantic's models are used."""

    def __init__(self, number: int) -> None:
        self.number = number

    @classmethod
    def model_validate(cls, given: Any) -> Model:
        if not isinstance(given, dict) or not isinstance(given.get("number"), int):
            raise ValueError("number must be a number")
        return cls(given["number"])

    def model_dump(self, *, mode: str) -> dict[str, int]:
        assert mode == "json"
        return {"number": self.number}


def called(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Run it as a worker does."""
    signature = Signature(function)
    arguments = signature.decode(json.dumps(given).encode())
    positional = signature.placed(CONTEXT, arguments) if signature.wants_context else ()
    return function(*positional, **arguments)


def typed(a: int, items: list[Item], note: str = "none") -> tuple[Any, ...]:
    return a, items, note


def untyped(a, b=2):  # type: ignore[no-untyped-def]
    return a, b


def nothing() -> None: ...


def more(a: int, item: Item, **rest: Any) -> tuple[Any, ...]:
    return a, item, rest


@pytest.mark.parametrize(
    ("function", "given", "words"),
    [
        (typed, {"a": 1}, ["missing items", "It takes a, items, note"]),
        (typed, {"a": 1, "items": [], "nte": "x"}, ["unknown nte"]),
        (typed, {"b": 1, "item": []}, ["missing a, items; unknown b, item"]),
        (typed, {"a": "1", "items": []}, ["Expected `int`, got `str` - at `$.a`"]),
        (untyped, {"b": 1}, ["missing a"]),
        (untyped, {"a": 1, "c": 2}, ["unknown c"]),
        (nothing, {"a": 1}, ["unknown a", "It takes nothing"]),
        (more, {"a": "1", "item": {"sku": "x"}}, ["Expected `int`"]),
        (more, {"item": {"sku": "x"}, "b": 1}, ["missing a"]),
        (typed, [1], ["Expected `object`, got `array`"]),
    ],
)
def test_input_with_wrong_names_or_types_is_refused_where_it_runs(function, given, words):
    with pytest.raises(Invalid) as refused:
        called(function, given)
    assert refused.value.code == "invalid_input"
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_named_input_is_converted_also_beside_any_other():
    assert called(typed, {"a": 1, "items": [{"sku": "x"}]}) == (1, [Item("x")], "none")
    assert called(more, {"a": 1, "item": {"sku": "x"}, "b": [2]}) == (1, Item("x"), {"b": [2]})
    assert called(untyped, {"a": [1]}) == ([1], 2)


def test_a_default_is_the_very_object_of_the_function():
    kept: list[int] = [1]
    sentinel = object()

    def function(a: list[int] = kept, b: Any = sentinel, c: Session | None = None) -> tuple[Any, ...]:
        return a, b, c

    a, b, c = called(function, {})
    assert a is kept and b is sentinel and c is None


def test_an_annotation_that_cannot_be_resolved_spoils_no_other():
    def function(ctx: Context, item: Item, other: Unknown = None) -> Unknown:  # type: ignore[type-arg]
        return ctx, item, other

    assert called(function, {"item": {"sku": "x"}, "other": [1]}) == (CONTEXT, Item("x"), [1])


def optional(ctx: hf.Context | None = None, *, a: int) -> Any:
    return ctx, a


def old_optional(ctx: Optional[hf.Context], a: int) -> Any:  # noqa: UP045 - as people write it
    return ctx, a


def anything(ctx: Any, a: int) -> Any:
    return ctx, a


def bare(ctx, a):  # type: ignore[no-untyped-def]
    return ctx, a


def second(a: int, context: hf.Context) -> Any:
    return context, a


def by_name(a: int, *, ctx: hf.Context) -> Any:
    return ctx, a


def positional(ctx: hf.Context, /, a: int) -> Any:
    return ctx, a


def with_rest(ctx: hf.Context, **rest: Any) -> Any:
    return ctx, rest["a"]


class CallableObject:
    def __call__(self, ctx: hf.Context, a: int) -> Any:
        return ctx, a


def bound(b: int, ctx: hf.Context, a: int) -> Any:
    return ctx, a + b


@pytest.mark.parametrize(
    "function",
    [
        optional,
        old_optional,
        anything,
        bare,
        second,
        by_name,
        positional,
        with_rest,
        CallableObject(),
        partial(bound, 0),
    ],
)
def test_the_context_is_found_however_it_is_spelled(function):
    assert called(function, {"a": 1}) == (CONTEXT, 1)
    signature = Signature(function)
    assert "ctx" not in signature.allowed and "context" not in signature.allowed
    with pytest.raises(Invalid, match="unknown ctx"):
        signature.check("shop.f", [{"a": 1, "ctx": 2}])
    with pytest.raises(Invalid, match="unknown ctx"):
        signature.decode(b'{"a": 1, "ctx": 2}')


def test_a_ctx_of_another_type_is_input():
    def function(ctx: str) -> str:
        return ctx

    assert called(function, {"ctx": "x"}) == "x" and not Signature(function).wants_context


def twice(ctx: hf.Context, again: hf.Context) -> None: ...


def unseen(context: Context) -> None: ...  # type: ignore[type-arg]


def custom(session: Session) -> None: ...


def among_many(sessions: dict[str, list[Session]]) -> None: ...


def inside(holder: Holder) -> None: ...


def protocol(asked: Asked) -> None: ...


def unresolved(holder: Unresolved) -> None: ...


def spread(*args: int) -> None: ...


def reserved(connection: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "text", "advice"),
    [
        (twice, "its context in two parameters, ctx and again", "Keep one of them"),
        (unseen, "'context' of the type 'Context'", "name it ctx"),
        (custom, "'session', which needs the class Session, which JSON cannot represent", "dataclass"),
        (among_many, "the class Session", "Any"),
        (inside, "the class Session", "model_validate"),
        (protocol, "the class Asked", "Any"),
        (unresolved, "name 'Unknown' is not defined", "Import"),
        (spread, "positional parameter 'args'", "keyword"),
        (reserved, "'connection'", "another name"),
        (partial(spread, 1), "positional parameter 'args'", "keyword"),
    ],
)
def test_a_signature_that_no_input_can_satisfy_is_refused_at_decoration(function, text, advice):
    with pytest.raises(Invalid) as refused:
        hf.App("shop").action(name="f")(function)
    assert refused.value.code == "invalid_action"
    assert text in refused.value.detail and advice in refused.value.advice, str(refused.value)


def test_paths_and_models_cross_as_json_and_come_back():
    def function(path: Path, model: Model, more: list[PurePosixPath], holder: LazyHolder, odd: object) -> Any:
        return path, model.number, more, holder.name, odd

    given = {"path": Path("/a"), "model": Model(7), "more": [PurePosixPath("b")], "holder": {"name": "x"}, "odd": [1]}
    stored = json_codec.encode(given, bytes_max=1_000, what="input")
    arguments = Signature(function).decode(stored)
    assert function(**arguments) == (Path("/a"), 7, [PurePosixPath("b")], "x", [1])
    with pytest.raises(Invalid, match="number must be a number"):
        Signature(function).decode(stored.replace(b"7", b'"7"'))
    with pytest.raises(Invalid, match="Expected `Path`, got `int`"):
        Signature(function).decode(stored.replace(b'"/a"', b"3"))


def test_a_class_that_is_only_for_callers_in_python_may_be_left_out():
    def function(a: int, session: Session | None = None) -> Any:
        return a, session

    assert called(function, {"a": 1}) == (1, None)
    with pytest.raises(Invalid, match="Expected `Session`"):
        called(function, {"a": 1, "session": "x"})
