"""Contract of a hint carrier other than PostgreSQL: one address to which hints are sent and from which they are
received.

A carrier may lose, repeat, reorder, delay or corrupt messages; only latency depends on it. Every failure is raised as
`Unavailable` with the code `carrier_away`, whatever its library raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.core.wakeups.hint import Hint
from holdfast.errors import Unavailable

BATCH_MAX = 10
"""The number of hints per call; the maximum of SQS."""
SENDS_DIGITS_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class HintDelivery:
    """One received message.

    `receipt` acknowledges it; `sends` is the metadata that the relay sent with the body, if known.
    """

    body: str
    receipt: str
    sends: int | None = None


class HintTransport(Protocol):
    """One address. A delivery that is neither extended nor done is delivered again, to any receiver."""

    async def publish(self, hints: Sequence[Hint]) -> None:
        """Send hints, any number; some may have been sent when it raises."""

    async def receive(self, count: int, *, wait_seconds: float) -> list[HintDelivery]:
        """Return at most `count` messages, hidden from other receivers for a while; none if none arrived in
        that time.
        """

    async def extend(self, deliveries: Sequence[HintDelivery]) -> None:
        """Keep messages hidden for another period."""

    async def done(self, deliveries: Sequence[HintDelivery]) -> None:
        """Delete messages."""

    async def check(self) -> str:
        """Return the state of the address in a few words, for `doctor`."""

    async def close(self) -> None: ...


def sends_of(value: Any) -> int | None:
    """Return the number sent with a body, if there is one."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < SENDS_DIGITS_MAX else None


def away(name: str, error: BaseException) -> Unavailable:
    """Convert a carrier's own error to `Unavailable`."""
    return Unavailable(
        f"{name} cannot be used: {str(error) or type(error).__name__}",
        code="carrier_away",
        advice="Workers poll until it is available again.",
    )
