"""Patience with unknown credentials: a few at once, then a few a minute, for each address. Time comes in as a value.

A try is paid before it is looked at and given back if it was right, so a thousand at once are not better than one by
one. Bounded: of more addresses than it keeps, the one that was quiet longest is forgotten.
"""

from __future__ import annotations

from collections import OrderedDict

BURST = 10
PER_SECOND = 1 / 6
ADDRESSES_MAX = 10_000


class TokenBucket:
    """What is left of it for each address: a bucket that fills up again."""

    def __init__(
        self, *, burst: int = BURST, per_second: float = PER_SECOND, addresses_max: int = ADDRESSES_MAX
    ) -> None:
        self._burst, self._per_second, self._addresses_max = burst, per_second, addresses_max
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._left)

    def spend(self, address: str, at: float) -> float:
        """Pay for one try: 0 if there was enough for it, else how many seconds to wait."""
        left = self._now(address, at)
        if left < 1:
            return (1 - left) / self._per_second
        self._keep(address, left - 1, at)
        return 0.0

    def refund(self, address: str, at: float) -> None:
        """Give a try back: it was right."""
        self._keep(address, self._now(address, at) + 1, at)

    def _now(self, address: str, at: float) -> float:
        left, since = self._left.get(address, (float(self._burst), at))
        return min(float(self._burst), left + max(0.0, at - since) * self._per_second)

    def _keep(self, address: str, left: float, at: float) -> None:
        self._left.pop(address, None)
        if left >= self._burst:
            return
        self._left[address] = (left, at)
        while len(self._left) > self._addresses_max:
            self._left.popitem(last=False)
