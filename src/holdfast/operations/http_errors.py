"""Conversion of RFC 9457 responses to the errors that the local client would raise."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import (
    Conflict,
    DispatchFailed,
    EffectDenied,
    EffectRefused,
    Forbidden,
    HoldfastError,
    Invalid,
    LeaseLost,
    NotFound,
    TaskFailed,
    TooMany,
    Unauthorized,
    Unavailable,
    WaitTimeout,
)

_BY_CATEGORY: dict[str, type[HoldfastError]] = {
    kind.category: kind
    for kind in (
        Invalid,
        NotFound,
        Conflict,
        LeaseLost,
        Unavailable,
        DispatchFailed,
        EffectRefused,
        TaskFailed,
        TooMany,
    )
}
_BY_CATEGORY["state_transition"] = Conflict
_BY_STATUS: dict[int, type[HoldfastError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    429: TooMany,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}
_BY_CODE: dict[str, type[HoldfastError]] = {
    WaitTimeout.default_code: WaitTimeout,
    EffectDenied.default_code: EffectDenied,
}
_RESERVED = {"type", "title", "status", "detail", "code", "category", "advice"}


def error_of(status: int, body: bytes) -> HoldfastError:
    """Return the error that a response describes; the status decides if the body is no Holdfast problem document."""
    try:
        problem: Any = msgspec.json.decode(body)
    except msgspec.DecodeError:
        problem = None
    if not isinstance(problem, dict) or not isinstance(problem.get("code"), str):
        return _kind(status, "", "")(f"The server answered with status {status} and no reason.", code="strange_answer")
    code, category = problem["code"], str(problem.get("category", ""))
    fields = {str(name): value for name, value in problem.items() if name not in _RESERVED}
    kind = _kind(status, category, code)
    return kind(str(problem.get("detail", "")), code=code, advice=str(problem.get("advice", "")), **fields)


def _kind(status: int, category: str, code: str) -> type[HoldfastError]:
    # A category may be that of the code; for these two statuses the status names the error class more precisely.
    by_status = _BY_STATUS[status] if status in (404, 409) and category in ("validation", "state_transition") else None
    known = _BY_CODE.get(code) or by_status or _BY_CATEGORY.get(category) or _BY_STATUS.get(status)
    return known or (Invalid if 400 <= status < 500 else HoldfastError)
