"""Limits on open responses: streams per caller, and streams and long polls together per tenant.

Each is a connection, and a server has a limited number: without these limits, one viewer could use them all. Workers
are limited per tenant only, because any number of them may share one token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from holdfast.errors import TooMany
from holdfast.server.auth.caller import Caller
from holdfast.settings.settings import HttpSettings

RETRY_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Streams:
    """The open streams and waits of one server."""

    caller_max: int
    tenant_max: int
    _open: Counter[Hashable] = field(default_factory=Counter)

    @classmethod
    def of(cls, settings: HttpSettings) -> Streams:
        return cls(settings.caller_streams_max, settings.tenant_streams_max)

    def require_stream(self, caller: Caller) -> None:
        """Raise `TooMany` if this caller or its tenant has reached its limit of open streams."""
        if self._open[_key(caller)] >= self.caller_max:
            raise _too_many(caller.actor, self.caller_max)
        self._require_tenant(caller)

    @contextmanager
    def stream(self, caller: Caller) -> Iterator[None]:
        """Count a stream while the block runs."""
        with self._counted(_key(caller)), self._counted(caller.tenant_id):
            yield

    @contextmanager
    def wait(self, caller: Caller) -> Iterator[None]:
        """Count a wait while the block runs; raise `TooMany` if its tenant has reached its limit."""
        self._require_tenant(caller)
        with self._counted(caller.tenant_id):
            yield

    def _require_tenant(self, caller: Caller) -> None:
        if self._open[caller.tenant_id] >= self.tenant_max:
            raise _too_many("this tenant", self.tenant_max)

    @contextmanager
    def _counted(self, key: Hashable) -> Iterator[None]:
        self._open[key] += 1
        try:
            yield
        finally:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]


def _key(caller: Caller) -> Hashable:
    return caller.tenant_id, caller.actor


def _too_many(whose: str, most: int) -> TooMany:
    return TooMany(
        f"The maximum of {most} event streams and long polls of {whose} is open on this server.",
        code="too_many_streams",
        advice="Close some, or share one stream between readers.",
        retry_after_seconds=RETRY_SECONDS,
    )
