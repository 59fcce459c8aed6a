"""Credentials that were right a moment ago, so that not every request costs a query. By digest, in memory, bounded.

A credential is believed for some seconds and then looked at again: that is how long a revoked one may still open. One
that was right before and is being looked at again does not count as somebody guessing.
"""

from __future__ import annotations

from collections import OrderedDict

from holdfast.server.auth.caller import Caller

KEPT_MAX = 10_000


class CredentialCache:
    """Who was behind which credential, and when that was seen."""

    def __init__(self, seconds: float, *, kept_max: int = KEPT_MAX) -> None:
        self._seconds, self._kept_max = seconds, kept_max
        self._kept: OrderedDict[bytes, tuple[Caller, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._kept

    def fresh(self, digest: bytes, at: float) -> Caller | None:
        """The caller, if it need not be looked up again yet."""
        caller, seen = self._kept.get(digest, (None, 0.0))
        return caller if caller is not None and at - seen < self._seconds else None

    def keep(self, digest: bytes, caller: Caller, at: float) -> None:
        self._kept.pop(digest, None)
        self._kept[digest] = (caller, at)
        while len(self._kept) > self._kept_max:
            self._kept.popitem(last=False)

    def forget(self, digest: bytes) -> None:
        self._kept.pop(digest, None)
