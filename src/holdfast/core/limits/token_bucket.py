"""Token bucket per client address for failed credential checks (burst 10, refill 1 per 6 s). Time is an argument.

A check spends a token first and gets it back if the credential was right. So a thousand concurrent guesses gain nothing
over consecutive ones. Memory is bounded: beyond `ADDRESSES_MAX`, the address unused for longest is dropped.
"""

from __future__ import annotations

from collections import OrderedDict

BURST = 10
PER_SECOND = 1 / 6
ADDRESSES_MAX = 10_000


class TokenBucket:
    """Tokens left per address; a bucket refills over time."""

    def __init__(
        self, *, burst: int = BURST, per_second: float = PER_SECOND, addresses_max: int = ADDRESSES_MAX
    ) -> None:
        self._burst, self._per_second, self._addresses_max = burst, per_second, addresses_max
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._left)

    def spend(self, address: str, at: float) -> float:
        """Spend one token; return 0 if there was one, else the seconds to wait."""
        left = self._now(address, at)
        if left < 1:
            return (1 - left) / self._per_second
        self._keep(address, left - 1, at)
        return 0.0

    def refund(self, address: str, at: float) -> None:
        """Give a token back after a successful check."""
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
