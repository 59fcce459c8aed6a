"""A cache of valid credentials, so that not every request costs a query. By digest, in memory, bounded.

An entry is trusted for some seconds and then checked again: that is how long a revoked credential may still work.
Checking a credential again that was valid before does not count as a failed login.
"""

from __future__ import annotations

from collections import OrderedDict

from holdfast.server.auth.caller import Caller

KEPT_MAX = 10_000


class CredentialCache:
    """The caller behind each credential, and when it was checked."""

    def __init__(self, seconds: float, *, kept_max: int = KEPT_MAX) -> None:
        self._seconds, self._kept_max = seconds, kept_max
        self._kept: OrderedDict[bytes, tuple[Caller, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._kept

    def fresh(self, digest: bytes, at: float) -> Caller | None:
        """Return the caller, if the entry is still fresh."""
        caller, seen = self._kept.get(digest, (None, 0.0))
        return caller if caller is not None and at - seen < self._seconds else None

    def keep(self, digest: bytes, caller: Caller, at: float) -> None:
        self._kept.pop(digest, None)
        self._kept[digest] = (caller, at)
        while len(self._kept) > self._kept_max:
            self._kept.popitem(last=False)

    def forget(self, digest: bytes) -> None:
        self._kept.pop(digest, None)
