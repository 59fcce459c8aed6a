"""Garbage: a process that handles thousands of tasks a second looks for it less often, and not in what it began with.

For processes of our own (workers, servers), never for one that only uses the client.
"""

from __future__ import annotations

import gc

_THRESHOLDS = (20_000, 20, 50)
"""Python looks after 700 new objects, which is after a few tasks here: nearly all of them are still in use."""


def freeze_startup_objects() -> None:
    """Once, before the work begins: what is there by now is no garbage, and no collection looks at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
