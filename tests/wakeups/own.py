"""A carrier of somebody's own, as `HOLDFAST_WAKE=tests.wakeups.own:make` finds it: messages in this process."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict

from holdfast.wakeups.contract import HintDelivery

BOXES: dict[str, dict[str, list]] = defaultdict(dict)
"""By address: receipts with body, number of the sending, and until when it is hidden."""
_numbers = itertools.count(1)


class Box:
    def __init__(self, address, visibility_seconds):
        self._messages = BOXES[address]
        self._seconds = visibility_seconds

    async def publish(self, hints):
        for hint in hints:
            self._messages[str(next(_numbers))] = [hint.body(), hint.sends, 0.0]

    async def receive(self, count, *, wait_seconds):
        deadline = time.monotonic() + wait_seconds
        while True:
            now = time.monotonic()
            found = [one for one, (_, _, hidden_until) in self._messages.items() if hidden_until <= now][:count]
            if found or now >= deadline:
                self._hide(found)
                told = [(one, *self._messages[one]) for one in found]
                return [HintDelivery(body=body, receipt=one, sends=sends) for one, body, sends, _ in told]
            await asyncio.sleep(0.01)

    async def extend(self, deliveries):
        self._hide([one.receipt for one in deliveries])

    def _hide(self, receipts):
        for one in receipts:
            if one in self._messages:
                self._messages[one][2] = time.monotonic() + self._seconds

    async def done(self, deliveries):
        for one in deliveries:
            self._messages.pop(one.receipt, None)

    async def check(self):
        return f"{len(self._messages)} messages"

    async def close(self):
        raise RuntimeError("whatever code of others raises ends nothing")


def make(address, *, visibility_seconds):
    if address == "nowhere":
        raise OSError("hunter2@nowhere")
    return Box(address, visibility_seconds)


def make_half(address, *, visibility_seconds):
    return object()
