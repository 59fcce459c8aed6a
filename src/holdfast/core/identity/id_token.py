"""OpenID Connect ID tokens: trusted issuers, required claims, and the person that a token identifies.

A person is (issuer, subject), never an e-mail address, because addresses change owners. Signature, expiry, issuer and
audience are checked before; this module decides what a genuine token grants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import Forbidden, InvalidSettings, Unauthorized

GOOGLE = "https://accounts.google.com"
GOOGLE_ISSUERS = frozenset({GOOGLE, "accounts.google.com"})
"""Google uses both spellings."""

ALGORITHMS = ("RS256", "ES256")
LEEWAY_SECONDS = 60
REQUIRED_CLAIMS = ("iss", "sub", "aud", "exp", "iat")
SUBJECT_CHARACTERS_MAX = 128
ISSUER_CHARACTERS_MAX = 100

_SENT_ALONG = ("jku", "x5u", "jwk", "x5c", "crit", "b64")
"""Header fields by which a token would supply its own key or its own rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A trusted issuer: its spellings, the accepted audiences, and the URL of its keys."""

    issuer: str
    spellings: frozenset[str]
    audiences: frozenset[str]
    domains: frozenset[str]
    keys_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """A person who signed in."""

    issuer: str
    subject: str
    domain: str | None
    email: str | None

    @property
    def actor(self) -> str:
        """The person's name in the audit log: an identifier that the issuer never reassigns."""
        return f"oidc:{self.issuer.removeprefix('https://')}#{self.subject}"


def provider(*, issuer: str, audiences: tuple[str, ...], domains: tuple[str, ...], keys_url: str | None) -> Provider:
    """Build a provider; raise `InvalidSettings` naming what is missing."""
    if len(issuer) > ISSUER_CHARACTERS_MAX or not issuer.startswith(("https://", "http://")):
        raise _unfit(
            f"The issuer {issuer[:80]!r} is not a URL.", "Set HOLDFAST_OIDC_ISSUER to the `iss` claim of its tokens."
        )
    if not audiences:
        raise _unfit(f"No audience is set for the issuer {issuer}.", "Set HOLDFAST_OIDC_AUDIENCES.")
    if not keys_url:
        raise _unfit(f"No URL is set for the keys of the issuer {issuer}.", "Set HOLDFAST_OIDC_JWKS_URL.")
    return Provider(
        issuer=issuer,
        spellings=GOOGLE_ISSUERS if issuer == GOOGLE else frozenset({issuer}),
        audiences=frozenset(audiences),
        domains=frozenset(domains),
        keys_url=keys_url,
    )


def key_named(header: Mapping[str, Any]) -> tuple[str, str]:
    """Return the algorithm and key id from a token's header; `Unauthorized` if it tries to supply its own key
    or rules.
    """
    algorithm, kid = header.get("alg"), header.get("kid")
    if algorithm not in ALGORITHMS or not isinstance(kid, str) or not kid:
        raise token_rejected("it names no known key")
    if any(name in header for name in _SENT_ALONG):
        raise token_rejected("its header contains a key or critical extensions")
    if str(header.get("typ", "JWT")).upper() != "JWT":
        raise token_rejected("it is not an ID token")
    return algorithm, kid


def judged(claims: Mapping[str, Any], expected: Provider) -> Person:
    """Return the person of a genuine token; `Unauthorized` for another kind of token, `Forbidden` for an unknown
    account.
    """
    if claims.get("token_use", "id") != "id" or claims.get("typ", "ID") != "ID":
        raise token_rejected("it is not an ID token")
    if isinstance(claims["aud"], list) and len(claims["aud"]) > 1 and claims.get("azp") not in expected.audiences:
        raise token_rejected("it was issued for another audience")
    subject, domain, email = claims["sub"], claims.get("hd"), claims.get("email")
    if not (isinstance(subject, str) and subject.isprintable() and 0 < len(subject) <= SUBJECT_CHARACTERS_MAX):
        raise token_rejected("its subject cannot be used")
    if ("email" in claims or "email_verified" in claims) and claims.get("email_verified") is not True:
        raise Forbidden("The e-mail address of this account is not verified.", code="email_not_verified")
    if expected.domains and not (isinstance(domain, str) and domain in expected.domains):
        raise Forbidden("This account does not belong to a domain that may sign in.", code="wrong_domain")
    return Person(
        issuer=expected.issuer,
        subject=subject,
        domain=domain if isinstance(domain, str) else None,
        email=email if isinstance(email, str) else None,
    )


def token_rejected(why: str) -> Unauthorized:
    """Build the error for an ID token that is not accepted."""
    return Unauthorized(f"The ID token is not accepted: {why}.", advice="Sign in again.")


def _unfit(detail: str, advice: str) -> InvalidSettings:
    return InvalidSettings(detail, code="oidc_incomplete", advice=advice)
