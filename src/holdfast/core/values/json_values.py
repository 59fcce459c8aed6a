"""Plain JSON values: what a definition may contain, so that storing and reading it back gives the same definition."""

from __future__ import annotations

import math

from holdfast.core.values.bounds import NESTING_MAX


def is_plain(value: object, *, nesting_max: int = NESTING_MAX) -> bool:
    """Return whether the value consists of null, booleans, finite numbers, text, lists and objects with text keys.

    Tuples, subclasses that change meaning, NaN, NUL characters and lone surrogates are not plain, because PostgreSQL or
    JSON would refuse or change them. Linear in the value; a value that contains itself is too deep, not endless.
    """
    level = [value]
    for _ in range(nesting_max + 1):
        if not level:
            return True
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                if not all(map(_is_text, item)):
                    return False
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif not _is_scalar(item):
                return False
        if len(below) > _ITEMS_MAX:
            return False
        level = below
    return not level


_ITEMS_MAX = 1_000_000
"""More items than this on one level cannot come from an input within its size limit."""


def _is_scalar(value: object) -> bool:
    if value is None or isinstance(value, bool | int):
        return True
    if isinstance(value, float):
        return math.isfinite(value)
    return _is_text(value)


def _is_text(value: object) -> bool:
    if not isinstance(value, str) or "\x00" in value:
        return False
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)
