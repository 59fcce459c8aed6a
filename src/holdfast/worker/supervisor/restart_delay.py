"""The delay before a worker process is restarted: short after a long life, doubled while processes keep dying young.

Pure: lifetimes arrive as values.
"""

from __future__ import annotations

YOUNG_SECONDS = 10.0
FIRST_SECONDS = 0.1
LONGEST_SECONDS = 30.0


class RestartDelay:
    """The restart history of one child slot."""

    def __init__(self) -> None:
        self.deaths = 0
        """How many processes in a row died young."""

    def pause_seconds(self, *, lived_seconds: float) -> float:
        """Return how long to wait after a death before the next start."""
        self.deaths = 1 if lived_seconds >= YOUNG_SECONDS else self.deaths + 1
        return float(min(LONGEST_SECONDS, FIRST_SECONDS * 2 ** min(self.deaths - 1, 30)))
