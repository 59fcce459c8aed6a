"""Verification of webhook deliveries for receivers (`verify`), and the signing of deliveries.

The scheme is Standard Webhooks: `webhook-signature` contains `v1,` and the base64 of HMAC-SHA256 over
`id.timestamp.body` with the bytes of a `whsec_…` secret; several signatures, one per valid secret, are separated by
spaces. The body is the received bytes, before any parsing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets as randomness
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.errors import Conflict, Invalid, Unauthorized

ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER = "webhook-id", "webhook-timestamp", "webhook-signature"
TOLERANCE_SECONDS = 300
SECRET_PREFIX = "whsec_"
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 24, 64
SIGNATURES_MAX = 20
_VERSION = "v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A genuine delivery. The id is the same for every repeat of one event: store it, and drop repeats."""

    id: str
    timestamp: int


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secret: str | Sequence[str],
    *,
    now: float | None = None,
    seen: Callable[[str], bool] | None = None,
) -> Delivery:
    """Accept a delivery, or raise: `Unauthorized` for a forged or outdated one, `Conflict` for a repeated one.

    `secret` may be several secrets, while one is being replaced. `seen` is your function: it records an id and returns
    whether it was recorded before.
    """
    if isinstance(body, str):
        raise Invalid("The body must be the received bytes.", code="body_not_bytes")
    given = {name.lower(): value for name, value in headers.items()}
    delivery_id, stamp, signatures = (given.get(name) for name in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER))
    if not delivery_id or not stamp or not signatures:
        raise _forged("A header of the signature is missing", "signature_missing")
    timestamp = _timestamp(stamp, time.time() if now is None else now)
    keys = [key_of(one) for one in ([secret] if isinstance(secret, str) else secret)]
    if not _is_signed(f"{delivery_id}.{stamp}.".encode() + body, signatures, keys):
        raise _forged("No signature matches", "signature_invalid")
    if seen is not None and seen(delivery_id):
        raise Conflict(f"Delivery {delivery_id[:80]} was received before.", code="webhook_repeated")
    return Delivery(id=delivery_id, timestamp=timestamp)


def signed(delivery_id: str, timestamp: int, body: bytes, secrets: Sequence[str]) -> dict[str, str]:
    """Return the headers of a delivery, signed with every valid secret."""
    content = f"{delivery_id}.{timestamp}.".encode() + body
    return {
        ID_HEADER: delivery_id,
        TIMESTAMP_HEADER: str(timestamp),
        SIGNATURE_HEADER: " ".join(_signature(content, key_of(secret)) for secret in secrets),
    }


def new_secret() -> str:
    """Return a new random secret."""
    return SECRET_PREFIX + base64.b64encode(randomness.token_bytes(32)).decode()


def key_of(secret: str) -> bytes:
    """Return the key bytes of a secret; raise `Invalid` for a text that is not a secret."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(SECRET_PREFIX) or not SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX:
        raise Invalid(
            "This is not a secret of a webhook.",
            code="invalid_secret",
            advice=f"It begins with {SECRET_PREFIX} and continues with {SECRET_BYTES_MIN} to "
            f"{SECRET_BYTES_MAX} bytes in base64, as `holdfast webhook add` printed it.",
        )
    return key


def _signature(content: bytes, key: bytes) -> str:
    return f"{_VERSION},{base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()}"


def _is_signed(content: bytes, signatures: str, keys: Sequence[bytes]) -> bool:
    """Return whether any signature matches any key. Every pair is compared in constant time, even after a match."""
    expected = [_signature(content, key).encode() for key in keys]
    given = [part.encode("utf-8", "replace") for part in signatures.split(" ")[:SIGNATURES_MAX]]
    fits = [hmac.compare_digest(one, wanted) for one in given for wanted in expected]
    return any(fits)


def _timestamp(text: str, now: float) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise _forged("The timestamp cannot be read", "signature_missing")
    timestamp = int(text)
    if abs(now - timestamp) > TOLERANCE_SECONDS:
        raise _forged(
            f"Its timestamp differs from now by more than {TOLERANCE_SECONDS} s", "timestamp_outside_tolerance"
        )
    return timestamp


def _forged(why: str, code: str) -> Unauthorized:
    return Unauthorized(f"This delivery cannot be verified. {why}.", code=code, advice="Return 401 and do nothing.")
