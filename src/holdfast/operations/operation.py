"""Operations: each operator use case is declared once, for the command line, HTTP and the reference.

The declaration contains the method and path, the required access, and the types of the request and the result. Fields
that the path names come from the path; the others come from the query of a GET or DELETE, or from the body of a POST.
Unknown fields are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_origin, get_type_hints

import msgspec

from holdfast.core.identity.access import Access

if TYPE_CHECKING:
    from holdfast.operations.context import OperationContext

ANSWER_SECONDS_MAX = 60.0
_PATH_FIELD = re.compile(r"{(\w+)}")


class KeyUse(StrEnum):
    """How an operation that creates something stores an `Idempotency-Key`."""

    OWN = "own"
    """The created object has the key, in its field `key`."""
    STORED = "stored"
    """The response is stored for a day, with a digest of the request."""


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The request of an operation."""


Q = TypeVar("Q", bound=Request)
A = TypeVar("A")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Generic[Q, A]):
    """One operation. `commands` are the CLI commands that use it."""

    name: str
    method: str
    path: str
    access: Access
    request: type[Q]
    answer: type[A]
    handler: Callable[[OperationContext, Q], Coroutine[Any, Any, A]]
    summary: str
    status: int
    commands: tuple[str, ...]
    once: KeyUse | None
    body_bytes_max: int
    seconds_max: float
    is_whole: bool
    """Whether it applies to the whole installation, not to one tenant."""
    is_bulk: bool
    """Whether its body contains many inputs, so that the size limit of one input does not apply."""
    is_long: bool
    """Whether it reads for minutes and uses a session for that long; a server runs few of these at once."""
    in_vain: Callable[[Q], A] | None
    """For an operation that waits: its result when the wait ends early, for example because the server stops."""

    @property
    def path_fields(self) -> tuple[str, ...]:
        """The fields that the path names."""
        return tuple(_PATH_FIELD.findall(self.path))

    @property
    def other_fields(self) -> tuple[str, ...]:
        """The fields of the query or the body."""
        return tuple(name for name in self.request.__struct_fields__ if name not in self.path_fields)

    @property
    def has_body(self) -> bool:
        return self.method == "POST"

    def list_fields(self) -> frozenset[str]:
        """Return the fields that may be repeated in a query."""
        hints = get_type_hints(self.request)
        return frozenset(name for name in self.other_fields if get_origin(hints[name]) is list)


def operation(
    name: str,
    route: str,
    access: Access,
    *,
    status: int = 200,
    commands: tuple[str, ...] | None = None,
    once: KeyUse | None = None,
    body_bytes_max: int = 64 * 1024,
    seconds_max: float = ANSWER_SECONDS_MAX,
    is_whole: bool = False,
    is_bulk: bool = False,
    is_long: bool = False,
    in_vain: Callable[[Any], Any] | None = None,
) -> Callable[[Callable[[OperationContext, Q], Coroutine[Any, Any, A]]], Operation[Q, A]]:
    """Declare the decorated handler as an operation.

    Its types are the request and the result, its docstring the summary.
    """

    def declare(handler: Callable[[OperationContext, Q], Coroutine[Any, Any, A]]) -> Operation[Q, A]:
        hints = get_type_hints(handler)
        method, _, path = route.partition(" ")
        return Operation(
            name=name,
            method=method,
            path=path,
            access=access,
            request=hints["request"],
            answer=hints["return"],
            handler=handler,
            summary=(handler.__doc__ or "").strip(),
            status=status,
            commands=(name.replace(".", " "),) if commands is None else commands,
            once=once,
            body_bytes_max=body_bytes_max,
            seconds_max=seconds_max,
            is_whole=is_whole,
            is_bulk=is_bulk,
            is_long=is_long,
            in_vain=in_vain,
        )

    return declare
