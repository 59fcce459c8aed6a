"""The bridge from blocking code to the asynchronous classes of the client.

A blocking class wraps an object of an asynchronous class and declares each method in one line:
`cancel = blocking(Task.cancel)`. The blocking method has the parameters, the result and the docstring of the
asynchronous one, for type checkers and editors as well as at run time. The coroutine runs in the event loop thread of
the client, so there is one implementation.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from holdfast._internal.event_loop_thread import EventLoopThread

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")


class SyncProxy(Generic[A]):
    """Base of the blocking classes: an object of an asynchronous class and the thread that runs its coroutines."""

    __slots__ = ("_async", "_thread")

    def __init__(self, thread: EventLoopThread, wrapped: A) -> None:
        self._thread = thread
        self._async = wrapped


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncProxy[A], P], T]:
    """Return the blocking variant of an asynchronous method, with the same parameters and docstring."""

    @wraps(method)
    def call(proxy: SyncProxy[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return proxy._thread.run(method(proxy._async, *args, **kwargs))

    return call


def blocking_iterator(
    method: Callable[Concatenate[A, P], AsyncIterator[T]],
) -> Callable[Concatenate[SyncProxy[A], P], Iterator[T]]:
    """Return the blocking variant of a method that yields asynchronously."""

    @wraps(method)
    def iterate(proxy: SyncProxy[A], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        stream: Any = method(proxy._async, *args, **kwargs)
        try:
            while (item := proxy._thread.run(_next(stream))) is not _END:
                yield item
        finally:
            proxy._thread.run(stream.aclose())

    document_result(iterate, AsyncIterator.__name__, Iterator.__name__)
    return iterate


def document_result(function: Callable[..., Any], was: str, now: str) -> None:
    """Make `help()` show the result of a blocking method where its type differs from the wrapped method's."""
    signature = inspect.signature(function)
    documented = signature.return_annotation.replace(was, now)
    vars(function)["__signature__"] = signature.replace(return_annotation=documented)


_END: Any = object()


async def _next(stream: Any) -> Any:
    return await anext(stream, _END)
