"""Wait for something that other processes do and nobody announces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LOOK_SECONDS = 0.02


async def until(is_so: Callable[[], bool], *, seconds_max: float) -> bool:
    """Look often until it is so; False when that took too long."""
    give_up_at = time.monotonic() + seconds_max
    while not is_so():
        if time.monotonic() > give_up_at:
            return False
        await asyncio.sleep(LOOK_SECONDS)
    return True
