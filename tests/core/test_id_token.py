"""What a genuine ID token is worth: tables of headers and claims."""

from __future__ import annotations

import pytest

from holdfast.core.identity.id_token import GOOGLE, judged, key_named, provider
from holdfast.errors import Forbidden, InvalidSettings, Unauthorized

OURS = provider(issuer=GOOGLE, audiences=("us", "us-too"), domains=("corp.com",), keys_url="https://keys.example")
ANYWHERE = provider(issuer="https://id.example", audiences=("us",), domains=(), keys_url="https://keys.example")
CLAIMS = {"sub": "7", "aud": "us", "hd": "corp.com", "email": "anna@corp.com", "email_verified": True}


def test_google_has_two_spellings_and_others_one():
    assert OURS.spellings == {"https://accounts.google.com", "accounts.google.com"}
    assert ANYWHERE.spellings == {"https://id.example"}


def test_a_person_is_issuer_and_subject():
    person = judged(CLAIMS, OURS)
    assert (person.issuer, person.subject, person.domain, person.email) == (GOOGLE, "7", "corp.com", "anna@corp.com")
    assert person.actor == "oidc:accounts.google.com#7"
    assert judged({**CLAIMS, "email": "berta@corp.com"}, OURS).actor == person.actor


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"email_verified": False}, "email_not_verified"),
        ({"email_verified": "true"}, "email_not_verified"),
        ({"email_verified": None}, "email_not_verified"),
        ({"hd": None}, "wrong_domain"),
        ({"hd": "corp.com.evil.org"}, "wrong_domain"),
        ({"hd": "CORP.COM"}, "wrong_domain"),
        ({"hd": ["corp.com"]}, "wrong_domain"),
        ({"hd": None, "email": "evil@corp.com.evil.org"}, "wrong_domain"),
        ({"hd": None, "email": "corp.com@evil.org"}, "wrong_domain"),
        ({"hd": None, "email": "anna@corp.com"}, "wrong_domain"),
    ],
)
def test_a_stranger_is_forbidden(changes, code):
    with pytest.raises(Forbidden) as refused:
        judged({**CLAIMS, **changes}, OURS)
    assert refused.value.code == code


def test_without_domains_membership_decides():
    assert judged({"sub": "7", "aud": "us"}, ANYWHERE).domain is None


@pytest.mark.parametrize(
    "changes",
    [
        {"sub": ""},
        {"sub": 7},
        {"sub": "x" * 129},
        {"sub": "a\x00b"},
        {"token_use": "access"},
        {"typ": "Bearer"},
        {"aud": ["us", "them"]},
        {"aud": ["us", "them"], "azp": "them"},
    ],
)
def test_another_kind_of_token_is_not_believed(changes):
    with pytest.raises(Unauthorized):
        judged({**CLAIMS, **changes}, OURS)


@pytest.mark.parametrize("changes", [{"aud": ["us"]}, {"aud": ["us", "them"], "azp": "us"}, {"token_use": "id"}])
def test_what_is_made_for_us_is_believed(changes):
    assert judged({**CLAIMS, **changes}, OURS).subject == "7"


@pytest.mark.parametrize(
    "changes",
    [
        {"alg": "none"},
        {"alg": "HS256"},
        {"alg": "RS384"},
        {"alg": None},
        {"kid": None},
        {"kid": ""},
        {"kid": 7},
        {"crit": ["exp"]},
        {"b64": False},
        {"jku": "https://evil.example"},
        {"x5u": "https://evil.example"},
        {"jwk": {}},
        {"x5c": []},
        {"typ": "at+jwt"},
        {"typ": 7},
    ],
)
def test_a_header_names_a_key_and_no_more(changes):
    header = {"alg": "RS256", "kid": "one", "typ": "JWT"}
    assert key_named(header) == ("RS256", "one")
    with pytest.raises(Unauthorized):
        key_named({**header, **changes})


@pytest.mark.parametrize(
    "missing",
    [
        {"audiences": ()},
        {"keys_url": None},
        {"keys_url": ""},
        {"issuer": "id.example"},
        {"issuer": "https://" + "x" * 100},
    ],
)
def test_half_a_provider_is_refused(missing):
    whole = {"issuer": "https://id.example", "audiences": ("us",), "domains": (), "keys_url": "https://keys.example"}
    with pytest.raises(InvalidSettings) as refused:
        provider(**{**whole, **missing})
    assert refused.value.code == "oidc_incomplete" and "HOLDFAST_OIDC" in refused.value.advice
