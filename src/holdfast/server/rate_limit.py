"""Request rate limits per caller, per tenant, and per address for unauthenticated requests. In memory, bounded.

Each key has a token bucket; a request takes one token. If the bucket is empty, the request is refused with the time to
wait, at no further cost. Workers are not limited here: they are few, authenticated, and send batches.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from holdfast.errors import TooMany
from holdfast.settings.settings import HttpSettings

KEYS_MAX = 10_000


class Buckets:
    """One token bucket per key. If there are more keys than `keys_max`, the one unused for longest is dropped."""

    def __init__(
        self,
        per_second: float,
        burst: int,
        *,
        keys_max: int = KEYS_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_second, self._burst = per_second, float(burst)
        self._keys_max, self._clock = keys_max, clock
        self._left: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._left)

    def wait_seconds(self, key: Hashable) -> float:
        """Take one token; return 0 if there was one, else how long until there is."""
        now = self._clock()
        left, since = self._left.pop(key, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._per_second)
        is_admitted = left >= 1
        self._left[key] = (left - 1 if is_admitted else left, now)
        if len(self._left) > self._keys_max:
            self._left.popitem(last=False)
        return 0.0 if is_admitted else (1 - left) / self._per_second


@dataclass(frozen=True, slots=True)
class RateLimiter:
    """The rate limits of one server."""

    peers: Buckets
    callers: Buckets
    tenants: Buckets

    @classmethod
    def of(cls, settings: HttpSettings) -> RateLimiter:
        return cls(
            peers=Buckets(settings.peer_requests_per_second, settings.peer_requests_burst),
            callers=Buckets(settings.caller_requests_per_second, settings.caller_requests_burst),
            tenants=Buckets(settings.tenant_requests_per_second, settings.tenant_requests_burst),
        )

    def admit_peer(self, peer: str) -> None:
        """Admit an unauthenticated request by its address; raise `TooMany` over the limit."""
        _require(self.peers.wait_seconds(peer), "this address")

    def admit_caller(self, tenant_id: int, actor: str) -> None:
        """Admit a request of an authenticated caller and their tenant; raise `TooMany` over the limit."""
        _require(self.callers.wait_seconds((tenant_id, actor)), actor)
        _require(self.tenants.wait_seconds(tenant_id), "this tenant")


def _require(wait_seconds: float, whose: str) -> None:
    if wait_seconds:
        raise TooMany(
            f"Too many requests from {whose}.",
            advice="Wait, and request larger pages: a page of a list has up to 10000 rows.",
            retry_after_seconds=math.ceil(wait_seconds),
        )
