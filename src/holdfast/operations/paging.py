"""Pages: how much of a list at once, and where the next part begins.

Long lists are read from an index, before an id. Lists of names are short; their pages are cut here, after the row that
ended the page before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import msgspec

from holdfast.engine.queries.pages import LIMIT_MAX, valid_limit
from holdfast.errors import Invalid

T = TypeVar("T")

PAGE = 50
ROWS_MAX = 100
"""How many rows of a long list one answer holds, however many were asked for: the rest is behind `next`."""
NAMES_PAGE = 1_000

# Stated for readers of the schema; what a list takes is checked by its verb, for every door alike.
Limit = Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 1, "maximum": LIMIT_MAX})]


def rows_of(limit: int) -> int:
    """How many of the rows that were asked for come in one answer."""
    return min(valid_limit(limit), ROWS_MAX)


def next_of(rows: Sequence[T], limit: int, key: Callable[[T], str]) -> str | None:
    """Where the next page begins; None after the last."""
    return key(rows[-1]) if rows and len(rows) == limit else None


def page_of(rows: Sequence[T], key: Callable[[T], str], after: str | None, limit: int) -> tuple[list[T], str | None]:
    """The part of a short list that follows one of its rows, and where the next part begins."""
    valid_limit(limit)
    begin = 0
    if after is not None:
        begin = next((place for place, row in enumerate(rows, start=1) if key(row) == after), -1)
    if begin < 0:
        raise Invalid(
            f"The list has no {str(after)[:80]!r} to go on after.", code="invalid_cursor", advice="Begin at the start."
        )
    page = list(rows[begin : begin + limit])
    return page, key(page[-1]) if page and begin + limit < len(rows) else None


def words(given: Sequence[str]) -> list[str]:
    """Words given one by one or with commas between them."""
    return [word for text in given for word in text.split(",") if word]
