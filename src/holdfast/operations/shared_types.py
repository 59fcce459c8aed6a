"""Requests and results that several operations share."""

from __future__ import annotations

import msgspec

from holdfast.operations.operation import Request
from holdfast.operations.paging import NAMES_PAGE, Limit


class Empty(Request, frozen=True, kw_only=True):
    """A request without fields."""


class NameRequest(Request, frozen=True, kw_only=True):
    name: str


class NameAndReason(NameRequest, frozen=True, kw_only=True):
    reason: str = ""


class ListNames(Request, frozen=True, kw_only=True):
    """`after` is the `next` of the previous page."""

    after: str | None = None
    limit: Limit = NAMES_PAGE


class Paused(msgspec.Struct, frozen=True, kw_only=True):
    """Whether it is paused now, and whether that is a change."""

    name: str
    paused: bool
    is_changed: bool
