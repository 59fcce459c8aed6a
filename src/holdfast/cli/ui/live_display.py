"""Concurrent execution of work and a live display; an error of either ends both."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


async def run_with_display(work: Coroutine[Any, Any, T], display: Coroutine[Any, Any, NoReturn]) -> T:
    """Return the result of the work. The display never ends by itself; if it fails, its error is raised."""
    working, attending = asyncio.create_task(work), asyncio.create_task(display)
    try:
        await asyncio.wait((working, attending), return_when=asyncio.FIRST_COMPLETED)
        return await (working if working.done() else attending)
    finally:
        for task in (working, attending):
            task.cancel()
        await asyncio.gather(working, attending, return_exceptions=True)
