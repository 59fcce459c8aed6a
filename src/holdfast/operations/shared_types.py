"""Requests and answers that several operations share."""

from __future__ import annotations

import msgspec

from holdfast.operations.operation import Request
from holdfast.operations.paging import NAMES_PAGE, Limit


class Empty(Request, frozen=True, kw_only=True):
    """Nothing to say."""


class NameRequest(Request, frozen=True, kw_only=True):
    name: str


class NameAndReason(NameRequest, frozen=True, kw_only=True):
    reason: str = ""


class ListNames(Request, frozen=True, kw_only=True):
    """`after` is the `next` of the page before."""

    after: str | None = None
    limit: Limit = NAMES_PAGE


class Paused(msgspec.Struct, frozen=True, kw_only=True):
    """Whether it is paused now, and whether that is new."""

    name: str
    paused: bool
    is_changed: bool
