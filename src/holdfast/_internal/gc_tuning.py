"""GC tuning for worker and server processes: freeze start-up objects and raise the collection thresholds.

A process that only uses the client keeps Python's defaults.
"""

from __future__ import annotations

import gc

_THRESHOLDS = (20_000, 20, 50)
"""By default Python collects after 700 new objects, here every few tasks, when nearly all of them are still in use."""


def freeze_startup_objects() -> None:
    """Collect once, before work starts, and exclude all remaining objects from later collections."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
