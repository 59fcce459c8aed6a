"""Verification of OpenID Connect ID tokens.

The issuer named in a token only selects one of the trusted providers. The key comes from that provider; no URL or key
in the token is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jwt

from holdfast.core.identity.id_token import (
    LEEWAY_SECONDS,
    REQUIRED_CLAIMS,
    Person,
    Provider,
    judged,
    key_named,
    token_rejected,
)
from holdfast.server.auth.issuer_keys import KeySet

_UNREADABLE = (jwt.PyJWTError, ValueError, TypeError, ArithmeticError, RecursionError)
"""Errors that the library raises for malformed tokens: huge numbers, lists instead of text, deep nesting."""


class IdTokens:
    """Verifies the tokens of the configured providers."""

    def __init__(self, providers: Sequence[Provider], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._key_rings = {provider.issuer: KeySet(provider.keys_url, clock=clock) for provider in providers}
        self._by_spelling = {spelling: provider for provider in providers for spelling in provider.spellings}

    async def read(self, text: str) -> Person:
        """Return the person who signed in with this token; raise `Unauthorized` or `Forbidden` if it is not valid."""
        try:
            seen = jwt.decode_complete(text, options={"verify_signature": False})
        except _UNREADABLE:
            raise token_rejected("it cannot be read") from None
        algorithm, kid = key_named(seen["header"])
        issuer = seen["payload"].get("iss")
        provider = self._by_spelling.get(issuer) if isinstance(issuer, str) else None
        if provider is None:
            raise token_rejected("its issuer is not configured")
        key = await self._key_rings[provider.issuer].find(kid, algorithm)
        if key is None:
            raise token_rejected("it names no known key")
        return judged(_verified(text, key, algorithm, provider), provider)

    async def close(self) -> None:
        for notify in self._key_rings.values():
            await notify.close()


def _verified(text: str, key: Any, algorithm: str, provider: Provider) -> dict[str, Any]:
    try:
        claims: dict[str, Any] = jwt.decode(
            text,
            key,
            algorithms=[algorithm],
            audience=sorted(provider.audiences),
            issuer=sorted(provider.spellings),
            leeway=LEEWAY_SECONDS,
            options={"require": list(REQUIRED_CLAIMS)},
        )
    except jwt.ExpiredSignatureError:
        raise token_rejected("it has expired") from None
    except jwt.InvalidAudienceError:
        raise token_rejected("it was issued for another audience") from None
    except _UNREADABLE:
        raise token_rejected("it is not genuine") from None
    return claims
