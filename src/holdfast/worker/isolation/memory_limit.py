"""A limit on the memory an attempt may allocate beyond what its process uses for the app and the interpreter."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

KIBIBYTE = 1024


class MemoryLimit:
    """A soft limit on this process's data while an attempt runs; allocating more raises `MemoryError`."""

    def __init__(self, bytes_max: int | None) -> None:
        self._bytes_max = bytes_max
        # Linux counts private memory under DATA; elsewhere only the whole address space can be limited.
        self._which = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS

    def set(self) -> None:
        if self._bytes_max is not None:
            self._apply(_data_bytes() + self._bytes_max)

    def lift(self) -> None:
        if self._bytes_max is not None:
            self._apply(resource.RLIM_INFINITY)

    def _apply(self, soft: int) -> None:
        hard = resource.getrlimit(self._which)[1]
        if hard != resource.RLIM_INFINITY and (soft == resource.RLIM_INFINITY or soft > hard):
            soft = hard
        resource.setrlimit(self._which, (soft, hard))


def _data_bytes() -> int:
    """Return how much memory this process uses now, as the limit counts it."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * KIBIBYTE for line in lines if line.startswith("VmData:")), 0)
