"""The contract of a carrier of hints beside PostgreSQL: one address, to which hints go and from which they come.

A carrier may lose, repeat, reorder, delay or corrupt anything; only speed depends on it. What is wrong with it is
raised as `Unavailable` with the code `carrier_away`, whatever its library calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.core.wakeups.hint import Hint
from holdfast.errors import Unavailable

BATCH_MAX = 10
"""How many hints go over the line at once: what SQS takes."""
SENDS_DIGITS_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class HintDelivery:
    """One message as it came; `receipt` answers for it, `sends` is what the relay put beside the body, if known."""

    body: str
    receipt: str
    sends: int | None = None


class HintTransport(Protocol):
    """One address. A delivery that is neither extended nor done comes again, to whoever asks: that is to leave it."""

    async def publish(self, hints: Sequence[Hint]) -> None:
        """Send hints, as many as given; some may have gone when it raises."""

    async def receive(self, count: int, *, wait_seconds: float) -> list[HintDelivery]:
        """At most `count` messages, hidden from others for a while; none after waiting that long."""

    async def extend(self, deliveries: Sequence[HintDelivery]) -> None:
        """Keep messages hidden for another while."""

    async def done(self, deliveries: Sequence[HintDelivery]) -> None:
        """Delete messages."""

    async def check(self) -> str:
        """Say in a few words how the address is, for `doctor`."""

    async def close(self) -> None: ...


def sends_of(given: Any) -> int | None:
    """The number beside a body, if there is one."""
    text = given.decode(errors="replace") if isinstance(given, bytes) else str(given)
    return int(text) if text.isascii() and text.isdigit() and len(text) < SENDS_DIGITS_MAX else None


def away(name: str, error: BaseException) -> Unavailable:
    """What a carrier's own error means to us."""
    return Unavailable(
        f"{name} cannot be used: {str(error) or type(error).__name__}",
        code="carrier_away",
        advice="Work goes on by polling; wake-ups follow when it is back.",
    )
