"""GC tuning for worker and server processes: freeze start-up objects and raise the collection thresholds.

A process that only uses the client keeps Python's defaults.
"""

from __future__ import annotations

import gc

_THRESHOLDS = (20_000, 20, 50)
"""Python's default first threshold, 700 in 3.11, would start a collection every few tasks, while nearly all new objects
are still referenced."""


def tune_gc() -> None:
    """Collect once, exclude all remaining objects from later collections, and raise the thresholds.

    Call it after start-up, before work begins.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
