"""JSON encoding at the boundaries: input that callers send and output that user code returns, checked once.

PostgreSQL can store and cast to jsonb every value that `encode` accepts, and `decode` returns an equal value.
Everything else is refused with its own code, before anything is stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import msgspec

from holdfast.core.values import bounds
from holdfast.errors import Invalid


def _plain(value: Any) -> Any:
    """Convert values that msgspec does not know to JSON: a path to its text, a model by its own `model_dump`."""
    if isinstance(value, PurePath):
        return str(value)
    if callable(getattr(type(value), "model_dump", None)):
        try:
            return value.model_dump(mode="json")
        except Exception as error:
            raise TypeError(f"{type(value).__qualname__}.model_dump raised {type(error).__name__}") from error
    raise TypeError(f"Encoding objects of type {type(value).__qualname__} is unsupported")


_encoder = msgspec.json.Encoder(decimal_format="string", uuid_format="canonical", enc_hook=_plain)
_canonical = msgspec.json.Encoder(
    decimal_format="string", uuid_format="canonical", order="deterministic", enc_hook=_plain
)
decode = msgspec.json.Decoder().decode

NULL = msgspec.Raw(b"null")
"""A missing JSON value. Views use it instead of None, because JSON cannot distinguish the two."""


def encode_many(values: list[Any], *, bytes_max: int, what: str) -> list[bytes]:
    """Encode a batch. Small values without a suspicious byte cost one combined check."""
    try:
        encoded = [_encoder.encode(value) for value in values]
    except (TypeError, ValueError, OverflowError, RecursionError):
        return [encode(value, bytes_max=bytes_max, what=what) for value in values]
    together = b"".join(encoded)
    is_plain = b"\\" not in together and b"null" not in together
    if is_plain and max(map(len, encoded), default=0) <= min(_SMALL_BYTES, bytes_max):
        return encoded
    return [encode(value, bytes_max=bytes_max, what=what) for value in values]


def encode(value: Any, *, bytes_max: int, what: str) -> bytes:
    """Encode a value as JSON, or raise naming the limit that it breaks. `what` names it in the message."""
    try:
        encoded = _encoder.encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise Invalid(
            f"The {what} is not JSON: {error}.", code="payload_not_json", advice="Send plain JSON values."
        ) from error
    except RecursionError as error:
        raise Invalid(f"The {what} is nested too deeply.", code="payload_too_deep") from error
    size = len(encoded)
    # Check single bytes first: a substring search costs several times as much, and every output passes here.
    has_trace = _BACKSLASH in encoded or (_N in encoded and b"null" in encoded)
    if has_trace or size > _SMALL_BYTES or size > bytes_max:
        _check_closely(value, encoded, bytes_max=bytes_max, what=what)
    return encoded


def canonical(value: Any, *, bytes_max: int, what: str) -> bytes:
    """Encode a value so that equal values give equal bytes, whatever the order of their keys."""
    encode(value, bytes_max=bytes_max, what=what)
    return _canonical.encode(value)


_BACKSLASH, _N = b"\\n"
_SMALL_BYTES = bounds.NESTING_MAX
"""A text this short is neither too large nor too deep; only a NUL or a lost NaN can hide in it, and both
leave a trace."""


def _check_closely(value: Any, encoded: bytes, *, bytes_max: int, what: str) -> None:
    if what == "input":
        bounds.valid_input(encoded, bytes_max=bytes_max)
    else:
        bounds.valid_output(encoded, bytes_max=bytes_max)
    # A NUL appears in JSON as an escape. jsonb and every text column refuse it, so it is refused here.
    if b"\\u0000" in encoded and any(isinstance(scalar, str) and "\x00" in scalar for scalar in _scalars(value)):
        raise Invalid(f"The {what} contains a NUL character.", code="payload_has_nul", advice="Remove it.")
    # msgspec writes NaN and infinities as null, which silently changes the value.
    if b"null" in encoded and any(
        isinstance(scalar, float) and not math.isfinite(scalar) for scalar in _scalars(value)
    ):
        raise Invalid(f"The {what} contains NaN or an infinity, which JSON cannot carry.", code="payload_not_finite")


def _scalars(value: Any) -> Iterator[Any]:
    """Yield every scalar and key inside a JSON-like value."""
    pending = [msgspec.to_builtins(value, builtin_types=(float,), enc_hook=_plain)]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending.extend(item.keys())
            pending.extend(item.values())
        elif isinstance(item, list | tuple | set | frozenset):
            pending.extend(item)
        else:
            yield item
