"""JSON at the edges: what people send in and what their code returns, checked once.

Promises: what `encode` accepts, PostgreSQL can store and cast to jsonb, and `decode` gives back equal. Everything else
is refused with its own code, before anything is stored.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import Invalid

DEPTH_MAX = 100

_encoder = msgspec.json.Encoder(decimal_format="string", uuid_format="canonical")
decode = msgspec.json.Decoder().decode


def encode(value: Any, *, bytes_max: int, what: str) -> bytes:
    """Encode a value as JSON, or say which limit it breaks. `what` names it in the message."""
    try:
        encoded = _encoder.encode(value)
    except (TypeError, ValueError, OverflowError, UnicodeEncodeError) as error:
        raise Invalid(
            f"The {what} is not JSON: {error}.", code="payload_not_json", advice="Send plain JSON values."
        ) from error
    except RecursionError as error:
        raise _too_deep(what) from error
    if len(encoded) > bytes_max:
        raise Invalid(
            f"The {what} has {len(encoded)} bytes, more than the {bytes_max} allowed.",
            code="payload_too_large",
            advice="Store it elsewhere and send a reference.",
        )
    # A NUL reaches JSON as this escape; jsonb and every text column refuse it, so it stops here.
    if b"\\u0000" in encoded and _holds_nul(value):
        raise Invalid(
            f"The {what} contains a NUL character.",
            code="payload_has_nul",
            advice="Remove it or send base64.",
        )
    if encoded.count(b"[") + encoded.count(b"{") > DEPTH_MAX and _depth(encoded) > DEPTH_MAX:
        raise _too_deep(what)
    # msgspec writes NaN and infinities as null, silently changing the value.
    if b"null" in encoded and _holds_nonfinite(value):
        raise Invalid(f"The {what} contains NaN or an infinity, which JSON cannot carry.", code="payload_not_finite")
    return encoded


def _too_deep(what: str) -> Invalid:
    return Invalid(f"The {what} is nested deeper than {DEPTH_MAX} levels.", code="payload_too_deep")


def _depth(encoded: bytes) -> int:
    depth = deepest = 0
    is_text = is_escaped = False
    for byte in encoded:
        if is_text:
            if is_escaped:
                is_escaped = False
            elif byte == 0x5C:
                is_escaped = True
            elif byte == 0x22:
                is_text = False
        elif byte == 0x22:
            is_text = True
        elif byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest


def _walk(value: Any) -> Any:
    """Every scalar and key inside a JSON-like value."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending.extend(item.keys())
            pending.extend(item.values())
        elif isinstance(item, list | tuple | set | frozenset):
            pending.extend(item)
        else:
            yield item


def _holds_nul(value: Any) -> bool:
    return any(isinstance(item, str) and "\x00" in item for item in _walk(msgspec.to_builtins(value)))


def _holds_nonfinite(value: Any) -> bool:
    return any(
        isinstance(item, float) and (item != item or item in (float("inf"), float("-inf"))) for item in _walk(value)
    )
