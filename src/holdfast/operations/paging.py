"""Pages of lists: how many rows a page has, and where the next one begins.

Long lists are read from an index, before an id. Lists of names are short: they are cut into pages here, after the last
row of the previous page.
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
"""How many rows of a long list one response contains at most, whatever the request's limit; the rest follows with
`next`.
"""
NAMES_PAGE = 1_000

# Only documents the schema: the called function checks the limit, for every kind of client.
Limit = Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 1, "maximum": LIMIT_MAX})]


def rows_of(limit: int) -> int:
    """Return how many rows one response contains."""
    return min(valid_limit(limit), ROWS_MAX)


def next_of(rows: Sequence[T], limit: int, key: Callable[[T], str]) -> str | None:
    """Return where the next page begins; None after the last."""
    return key(rows[-1]) if rows and len(rows) == limit else None


def page_of(rows: Sequence[T], key: Callable[[T], str], after: str | None, limit: int) -> tuple[list[T], str | None]:
    """Return the part of a short list that follows one of its rows, and where the next part begins."""
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


def words(texts: Sequence[str]) -> list[str]:
    """Split values that may be given one by one or separated by commas."""
    return [word for text in texts for word in text.split(",") if word]
