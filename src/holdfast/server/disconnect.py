"""Long-running responses, cancelled when the client disconnects.

Every waiting request is counted (`Streams`). When the server stops, it ends the waits of operators here; the wait
registry ends those of workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from holdfast.errors import Invalid
from holdfast.server.endpoint import ApiRequest

T = TypeVar("T")


async def until_disconnect(api_request: ApiRequest, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, unless the worker that sent the request disconnects first."""
    try:
        with api_request.server_state.streams.wait(api_request.caller):
            return await _first(api_request, work)
    finally:
        work.close()


async def until_disconnect_or_close(api_request: ApiRequest, work: Coroutine[Any, Any, T], in_vain: T) -> T:
    """Return the result of `work` for any other caller, within its limit of waits; `in_vain` if the server stops."""
    streams, closing = api_request.server_state.streams, api_request.server_state.closing
    try:
        streams.require_stream(api_request.caller)
        with streams.stream(api_request.caller):
            if closing.is_set():
                return in_vain
            return await _first(api_request, work, _then(closing, in_vain))
    finally:
        work.close()


async def _then(event: asyncio.Event, value: T) -> T:
    await event.wait()
    return value


async def _first(api_request: ApiRequest, *works: Coroutine[Any, Any, T]) -> T:
    """Return the result that is ready first. Cancel the rest, or all if the client disconnects."""
    doing = [asyncio.create_task(work) for work in works]
    leaving = asyncio.create_task(_left(api_request))
    try:
        await asyncio.wait({*doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        for pending in doing:
            if pending.done():
                return await pending
        raise Invalid("The client disconnected.", code="caller_left")
    finally:
        for task in (*doing, leaving):
            task.cancel()
        await asyncio.gather(*doing, leaving, return_exceptions=True)


async def _left(api_request: ApiRequest) -> None:
    """Wait until the client disconnects, discarding any unread part of the body."""
    while (await api_request.request.receive())["type"] != "http.disconnect":
        pass
