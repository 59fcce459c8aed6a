"""A limit on long reads (operations that use a session for minutes): a server runs few at once, and refuses others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.errors import TooMany

LONG_READS_MAX = 2
RETRY_SECONDS = 10


class LongReads:
    """The number of long reads under way on one server."""

    def __init__(self) -> None:
        self._count = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count one long read while the block runs; raise `TooMany` if the limit is reached."""
        if self._count >= LONG_READS_MAX:
            raise TooMany(
                f"This server already runs {LONG_READS_MAX} checks of this kind, the maximum.",
                code="too_many_long_reads",
                advice="Try again when one of them has ended.",
                retry_after_seconds=RETRY_SECONDS,
            )
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
