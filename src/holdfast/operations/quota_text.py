"""Parsing of retry quotas as people write them (`100/1m`, `20%`), and changes to parts of a quota."""

from __future__ import annotations

from dataclasses import replace

from msgspec import UnsetType

from holdfast.core.limits.breaker import valid_share
from holdfast.core.limits.quota import Quota
from holdfast.core.values.duration import seconds_of
from holdfast.errors import Invalid

WINDOW_SECONDS = 60.0


def changed_quota(now: Quota | None, retries: str | UnsetType | None, share: str | UnsetType | None) -> Quota | None:
    """Return the changed quota: None removes a part, unset keeps it. The result is None if no part is left."""
    count, window = (None, WINDOW_SECONDS) if now is None else (now.retries, now.window_seconds)
    if retries is None:
        count = None
    elif not isinstance(retries, UnsetType):
        count, window = _count_and_window(retries, window)
    part = None if now is None else now.share
    if not isinstance(share, UnsetType):
        part = None if share is None else valid_share("quota", share)
    if count is None and part is None:
        return None
    return replace(now or Quota(), retries=count, share=part, window_seconds=window)


def _count_and_window(text: str, window: float) -> tuple[int, float]:
    count, slash, per = text.partition("/")
    if not (count.strip().isascii() and count.strip().isdigit() and len(count) <= 9):
        raise Invalid(
            f"`retries` must be a number, a number per time, or none, not {text!r}.",
            code="invalid_limit",
            advice="Write for example 100/1m.",
        )
    return int(count), seconds_of(f"1{per}" if per.strip() in ("s", "m", "h", "d") else per) if slash else window
