"""User-supplied carriers: `module:factory`, where the factory creates the transport to one address.

It is called as `factory(address, visibility_seconds=30.0)` and returns a `HintTransport`. Every exception of that
transport means that the carrier is unavailable: foreign code never ends a worker or a relay.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from holdfast.core.wakeups.hint import Hint
from holdfast.errors import InvalidSettings, Unavailable
from holdfast.wakeups.contract import HintDelivery, HintTransport, away


def supplied(reference: str, address: str, *, visibility_seconds: float) -> HintTransport:
    """Return the transport that a factory creates; `InvalidSettings` if it cannot be imported or does not
    create one.
    """
    factory = _imported(reference)
    try:
        made = factory(address, visibility_seconds=visibility_seconds)
    except Exception as error:
        # Report the exception type only: its message may contain a part of the address, and that a password.
        raise _refusal(reference, f"it raised {type(error).__name__}") from error
    if missing := [name for name in _METHODS if not callable(getattr(made, name, None))]:
        raise _refusal(reference, f"the object it returned has no {missing[0]}()")
    return PluginTransport(reference, made)


def _imported(reference: str) -> Callable[..., Any]:
    module, _, attribute = reference.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise _refusal(reference, f"it cannot be imported: {type(error).__name__}: {error}") from error
    return found


def _refusal(reference: str, why: str) -> InvalidSettings:
    return InvalidSettings(
        f"Wake-ups cannot use {reference}: {why}.",
        code="carrier_unusable",
        advice="See docs/wake-ups.md, “Your own”, for the contract of a factory.",
        setting="wake.over",
    )


class PluginTransport:
    """Wraps a user-supplied transport, so that it raises only `Unavailable`."""

    def __init__(self, name: str, made: HintTransport) -> None:
        self._name = name
        self._made = made

    async def publish(self, hints: Sequence[Hint]) -> None:
        async with self._trouble():
            await self._made.publish(hints)

    async def receive(self, count: int, *, wait_seconds: float) -> list[HintDelivery]:
        async with self._trouble():
            return list(await self._made.receive(count, wait_seconds=wait_seconds))

    async def extend(self, deliveries: Sequence[HintDelivery]) -> None:
        if deliveries:
            async with self._trouble():
                await self._made.extend(deliveries)

    async def done(self, deliveries: Sequence[HintDelivery]) -> None:
        if deliveries:
            async with self._trouble():
                await self._made.done(deliveries)

    async def check(self) -> str:
        async with self._trouble():
            return str(await self._made.check())

    async def close(self) -> None:
        try:
            async with self._trouble():
                await self._made.close()
        except Unavailable:
            return

    @asynccontextmanager
    async def _trouble(self) -> AsyncIterator[None]:
        try:
            yield
        except Exception as error:  # foreign code may raise anything, and a hint must never end a worker
            raise away(self._name, error) from error


_METHODS = ("publish", "receive", "extend", "done", "check", "close")
