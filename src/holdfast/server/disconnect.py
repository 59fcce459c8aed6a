"""Answers that take their time, for as long as their callers stay: who hangs up is worked for no longer.

Everybody who waits is counted (`Streams`). Operators are let go when the server stops; workers are by the lobby.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from holdfast.errors import Invalid
from holdfast.server.endpoint import ApiRequest

T = TypeVar("T")


async def while_here(asked: ApiRequest, work: Coroutine[Any, Any, T]) -> T:
    """The result of something that may take its time, as long as the worker that asked waits for it."""
    try:
        with asked.server_state.streams.wait(asked.caller):
            return await _first(asked, work)
    finally:
        work.close()


async def while_open(asked: ApiRequest, work: Coroutine[Any, Any, T], in_vain: T) -> T:
    """The same for anybody else, who may have so many waits open; `in_vain` when the server stops meanwhile."""
    streams, closing = asked.server_state.streams, asked.server_state.closing
    try:
        streams.require_stream(asked.caller)
        with streams.stream(asked.caller):
            if closing.is_set():
                return in_vain
            return await _first(asked, work, _then(closing, in_vain))
    finally:
        work.close()


async def _then(event: asyncio.Event, value: T) -> T:
    await event.wait()
    return value


async def _first(asked: ApiRequest, *works: Coroutine[Any, Any, T]) -> T:
    """The result of whichever ends first; the others are stopped, and all of them if the caller hangs up."""
    doing = [asyncio.create_task(work) for work in works]
    leaving = asyncio.create_task(_left(asked))
    try:
        await asyncio.wait({*doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        for one in doing:
            if one.done():
                return await one
        raise Invalid("The caller hung up.", code="caller_left")
    finally:
        for task in (*doing, leaving):
            task.cancel()
        await asyncio.gather(*doing, leaving, return_exceptions=True)


async def _left(asked: ApiRequest) -> None:
    """Wait until the caller is gone. What is left of a body that nobody reads comes first."""
    while (await asked.request.receive())["type"] != "http.disconnect":
        pass
