"""Exponential backoff with an upper bound and jitter."""

from __future__ import annotations

import hashlib


def backoff_seconds(
    *, retry_count: int, base: float, multiplier: float, maximum: float, jitter_factor: float, jitter: float
) -> float:
    """Return `min(base · multiplier^retry_count, maximum)`, spread by ± `jitter_factor`.

    `jitter` is a uniform value in [0, 1] drawn by the caller: 0 gives the shortest pause, 1 the longest. Jitter applies
    after the bound, so the longest pause is `maximum · (1 + jitter_factor)`.
    """
    try:
        pause = min(base * float(multiplier) ** retry_count, maximum)
    except OverflowError:
        pause = maximum if base > 0 else 0.0
    return pause * (1 - jitter_factor + 2 * jitter_factor * jitter)


def jitter_of(task_id: int, attempt: int) -> float:
    """Return the jitter of one attempt, uniform in [0, 1) over attempts.

    It depends on the arguments only, so every process computes the same pause for the same retry.
    """
    digest = hashlib.blake2b(b"%d:%d" % (task_id, attempt), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64
