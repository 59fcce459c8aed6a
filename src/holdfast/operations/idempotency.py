"""Idempotency keys of requests: stored in the created object if it has a key, else with the response."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from holdfast.core.values import bounds
from holdfast.engine.idempotency import IdempotentRequest
from holdfast.errors import Invalid
from holdfast.operations.operation import KeyUse as How
from holdfast.operations.operation import Operation, Q

_ADVICE = {
    "token.create": "Leave the key out. No secret is kept to be told again: if the answer got lost, revoke the token "
    "by its name and make another; repeated, its name is taken.",
    "webhook.add": "Leave the key out. No secret is told again: if the answer got lost, rotate it; repeated, its name "
    "is taken.",
    "webhook.rotate": "Leave the key out. It makes another secret each time, and none is told again: if the answer got "
    "lost, rotate once more.",
    "webhook.test": "Leave the key out. It sends another test event each time.",
}
"""Advice for operations whose repetition is not the same request."""

_canonical = msgspec.json.Encoder(order="deterministic")


def with_key(
    operation: Operation[Q, Any], request: Q, key: str | None, tenant_id: int
) -> tuple[Q, IdempotentRequest | None]:
    """Return the request with its key, and what stores its response; raise `Invalid` if the operation takes no key."""
    if key is None:
        return request, None
    bounds.valid_key(key)
    match operation.once:
        case How.OWN:
            own = getattr(request, "key", None)
            if own not in (None, key):
                raise Invalid("The request has two keys.", code="invalid_key", advice="Give one of them.")
            return msgspec.structs.replace(request, key=key), None
        case How.STORED:
            try:
                encoded = _canonical.encode(request)
            except RecursionError:
                raise Invalid("The request is nested too deep.", code="payload_too_deep") from None
            digest = hashlib.sha256(operation.name.encode() + b"\0" + encoded).digest()
            return request, IdempotentRequest(tenant_id=tenant_id, key=key, digest=digest)
        case None:
            raise Invalid(
                f"{operation.name} takes no idempotency key.",
                code="key_not_taken",
                advice=_ADVICE.get(operation.name, "It changes nothing, or the same when repeated: leave the key out."),
            )
