"""Garbage: what a long-lived process loaded at its start is set aside, so that no collection looks at it again.

For processes of our own (workers, servers), never for one that only uses the client.
"""

from __future__ import annotations

import gc


def set_aside() -> None:
    """Once, before the work begins. A full collection then looks at what the work made, not at every module."""
    gc.collect()
    gc.freeze()
