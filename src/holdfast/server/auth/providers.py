"""The identity providers that the settings name: Google by its client ids, and one other issuer."""

from __future__ import annotations

from urllib.parse import urlsplit

from holdfast.core.identity.id_token import GOOGLE, Provider, provider
from holdfast.errors import InvalidSettings
from holdfast.net.server_url import is_loopback
from holdfast.settings.settings import AuthSettings


def providers_of(auth: AuthSettings) -> tuple[Provider, ...]:
    """Return the trusted providers; raise `InvalidSettings` for an incomplete one."""
    named: list[tuple[str, tuple[str, ...], str | None]] = []
    if auth.google_client_ids:
        named.append((GOOGLE, auth.google_client_ids, auth.google_jwks_url))
    if auth.oidc_issuer:
        named.append((auth.oidc_issuer, auth.oidc_audiences, auth.oidc_jwks_url))
    found = [
        provider(issuer=issuer, audiences=audiences, domains=auth.oidc_hd, keys_url=keys_url)
        for issuer, audiences, keys_url in named
    ]
    if len({configured.issuer for configured in found}) < len(found):
        raise InvalidSettings("Google is named twice.", code="oidc_incomplete", advice="Unset HOLDFAST_OIDC_ISSUER.")
    for configured in found:
        _require_safe(configured.keys_url)
    return tuple(found)


def _require_safe(url: str) -> None:
    """Require HTTPS, except on loopback: keys from an unencrypted connection could be forged."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme == "http" and is_loopback(parts.hostname or ""):
        return
    raise InvalidSettings(
        f"Keys are fetched over https only, not from {url[:80]!r}.",
        code="oidc_incomplete",
        advice="Set HOLDFAST_OIDC_JWKS_URL to the issuer's jwks_uri.",
    )
