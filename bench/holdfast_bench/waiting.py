"""Polling for a condition that other processes bring about without a notification."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LOOK_SECONDS = 0.02


async def until(is_so: Callable[[], bool], *, seconds_max: float) -> bool:
    """Poll until the condition holds; return False if that took too long."""
    give_up_at = time.monotonic() + seconds_max
    while not is_so():
        if time.monotonic() > give_up_at:
            return False
        await asyncio.sleep(LOOK_SECONDS)
    return True
