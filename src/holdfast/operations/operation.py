"""An operation: one thing an operator may ask for, declared once for the command line, for HTTP and for its reference.

The declaration says where it is found (method and path), whom it admits, what it takes and what it answers. Fields of
the request that the path names come from the path; the others from the query of a GET or DELETE, and from the body of a
POST. Unknown ones are refused.
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
    """How an operation that creates something keeps an `Idempotency-Key`."""

    OWN = "own"
    """What is created carries the key itself, in its field `key`."""
    STORED = "stored"
    """The answer is kept for a day beside what was asked."""


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operation takes."""


Q = TypeVar("Q", bound=Request)
A = TypeVar("A")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Generic[Q, A]):
    """One thing to ask for. `commands` are the commands of the command line that ask for it."""

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
    """Whether it is about the whole installation, not about one tenant."""
    is_bulk: bool
    """Whether its body holds many inputs, so that the limit of one does not bound it."""
    is_long: bool
    """Whether it reads for minutes, and so holds a session for as long: a server does few of these at once."""
    in_vain: Callable[[Q], A] | None
    """For one that waits: what it answers to whoever waited in vain, as when a server stops meanwhile."""

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
        """The fields that may be given several times in a query."""
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
    """Declare the decorated handler as an operation; its types are the request and the answer, its doc the summary."""

    def declare(handler: Callable[[OperationContext, Q], Coroutine[Any, Any, A]]) -> Operation[Q, A]:
        hints = get_type_hints(handler)
        method, _, path = route.partition(" ")
        return Operation(
            name=name,
            method=method,
            path=path,
            access=access,
            request=hints["asked"],
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
