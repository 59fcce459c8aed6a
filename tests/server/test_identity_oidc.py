"""ID tokens at the real server, with a real issuer beside it: the attacks of the checklist, one by one."""

from __future__ import annotations

import asyncio
import hmac
import time

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tests.server.issuer import AUDIENCE, Issuer, encoded, part, public, rsa_key

from holdfast.core.identity.id_token import GOOGLE
from holdfast.engine.audit import list_audit
from holdfast.engine.identity.members import add_member, list_members, remove_member
from holdfast.errors import InvalidSettings
from holdfast.server.app import serving
from holdfast.server.auth.issuer_keys import PAUSE_SECONDS
from holdfast.settings.settings import AuthSettings, Settings
from holdfast.testing.factories import a_task


@pytest.fixture
def issuer():
    made = Issuer()
    yield made
    made.close()


def settings_for(issuer, **changes) -> Settings:
    auth = {"oidc_issuer": issuer.issuer, "oidc_audiences": (AUDIENCE, "another"), "oidc_jwks_url": issuer.url}
    return Settings(port=0, auth=AuthSettings(**{**auth, "oidc_hd": ("corp.example",), **changes}))


@pytest.fixture
def holdfast_settings(issuer):
    return settings_for(issuer)


@pytest.fixture
async def anna(engine, issuer):
    """An operator."""
    return await add_member(
        engine.database, 1, issuer=issuer.issuer, subject="1001", role="operator", actor="ada", reason=""
    )


async def status(call, token) -> int:
    return (await call.bearing(token).get("/api/v1/tasks")).status


@pytest.mark.parametrize("kid", ["one", "two"])
async def test_a_member_signs_in_and_acts_under_their_subject(call, issuer, anna, harness, engine, kid):
    task = await harness.enqueue(a_task())
    asked = call.bearing(issuer.token(kid=kid))
    assert (await asked.get("/api/v1/tasks")).status == 200
    assert (await asked.post(f"/api/v1/tasks/{task.task_id}/cancel")).status == 202
    assert (await asked.post("/internal/exchange", {})).status == 403
    actors = {row.actor for row in await list_audit(engine.database, 1)}
    assert actors == {"ada", "oidc:id.example/realm#1001"}


async def test_who_is_no_member_is_known_and_forbidden(call, issuer, anna):
    answer = await call.bearing(issuer.token(sub="1002")).get("/api/v1/tasks")
    assert (answer.status, answer.json["code"]) == (403, "not_a_member")


async def test_a_domain_is_a_member_and_an_account_of_it_may_be_more(call, issuer, anna, engine):
    await add_member(engine.database, 1, issuer=issuer.issuer, domain="corp.example", role="viewer", actor="ada")
    stranger, operator = call.bearing(issuer.token(sub="1002")), call.bearing(issuer.token())
    assert [(await who.get("/api/v1/tasks")).status for who in (stranger, operator)] == [200, 200]
    denied, absent = [await who.post("/api/v1/tasks/9/cancel", {}) for who in (stranger, operator)]
    assert (denied.status, absent.status) == (403, 404)


async def test_a_member_who_was_removed_is_out_within_the_time_of_the_cache(call, issuer, anna, engine, ticks):
    asked = call.bearing(issuer.token())
    assert (await asked.get("/api/v1/tasks")).status == 200
    await remove_member(engine.database, 1, anna.member_id, actor="ada")
    ticks.advance(AuthSettings().token_cache_seconds)
    assert (await asked.get("/api/v1/tasks")).status == 403
    assert await list_members(engine.database, 1) == []


HOUR = 3600
PATIENCE_SECONDS = 6


async def test_tokens_with_wrong_claims_are_nobodys(call, issuer, anna, ticks):
    at = int(time.time())
    wrong = [
        {"aud": "somebody-else"},
        {"aud": ["x", "y"]},
        {"aud": [AUDIENCE, "x"]},
        {"aud": [AUDIENCE, "x"], "azp": "x"},
        {"aud": AUDIENCE[:-1]},
        {"aud": None},
        {"iss": "https://id.example"},
        {"iss": "https://id.example/realm/"},
        {"iss": "https://id.example/realm.evil.org"},
        {"iss": "id.example/realm"},
        {"iss": ["https://id.example/realm"]},
        {"iss": None},
        {"exp": at - 61},
        {"exp": None},
        {"iat": at + HOUR},
        {"iat": None},
        {"nbf": at + HOUR},
        {"sub": None},
        {"sub": ""},
        {"token_use": "access"},
        {"exp": float("inf")},
        {"exp": "soon"},
        {"exp": [at + HOUR]},
        {"iat": {}},
    ]
    assert await status(call, issuer.token()) == 200
    for changes in wrong:
        ticks.advance(PATIENCE_SECONDS)
        answer = await call.bearing(issuer.token(**changes)).get("/api/v1/tasks")
        assert (answer.status, answer.json["code"]) == (401, "unauthorized"), changes


async def test_tokens_within_the_rules_are_believed(call, issuer, anna):
    at = int(time.time())
    right = [
        {"aud": ["another"]},
        {"aud": [AUDIENCE, "x"], "azp": AUDIENCE},
        {"exp": at - 1},
        {"iat": at + 30},
        {"nbf": at + 30},
        {"email": None, "email_verified": None},
    ]
    for changes in right:
        assert await status(call, issuer.token(**changes)) == 200, changes


async def test_strangers_of_the_same_issuer_are_forbidden(call, issuer, anna):
    strangers = [
        ({"email_verified": False}, "email_not_verified"),
        ({"email_verified": None}, "email_not_verified"),
        ({"hd": None}, "wrong_domain"),
        ({"hd": "corp.example.evil.org", "email": "evil@corp.example.evil.org"}, "wrong_domain"),
        ({"hd": "evil.org", "email": "corp.example@evil.org"}, "wrong_domain"),
    ]
    for changes, code in strangers:
        answer = await call.bearing(issuer.token(**changes)).get("/api/v1/tasks")
        assert (answer.status, answer.json["code"]) == (403, code), changes


def forgeries(issuer):
    """Tokens that are not what they seem, by what is wrong with them."""
    claims, pem = issuer.claims(), rsa_key().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    unsigned = f"{part({'alg': 'none', 'kid': 'one'})}.{part(claims)}."
    head, body, signature = issuer.token().split(".")
    evil = {"jwk": public(rsa_key(9), "one"), "jku": f"{issuer.url}/evil", "x5u": f"{issuer.url}/evil", "x5c": ["x"]}
    yield "alg none", unsigned
    yield "alg none with a signature", f"{unsigned}{signature}"
    confused = f"{part({'alg': 'HS256', 'kid': 'one', 'typ': 'JWT'})}.{part(claims)}"
    yield "HS256 with the public key", f"{confused}.{encoded(hmac.digest(pem, confused.encode(), 'sha256'))}"
    yield "another key under the same name", issuer.token(key=rsa_key(9))
    yield "the other algorithm's key", issuer.token(kid="two", key=rsa_key())
    yield "no kid", issuer.token(header={"kid": None})
    yield "unknown kid", issuer.token(kid="nine", key=rsa_key(9))
    yield "crit", issuer.token(header={"crit": ["exp"]})
    for name, value in evil.items():
        yield name, issuer.token(key=rsa_key(9), header={name: value})
        yield f"{name} on a genuine one", issuer.token(header={name: value})
    yield "an access token", issuer.token(header={"typ": "at+jwt"})
    yield "changed claims", f"{head}.{part({**claims, 'sub': '1'})}.{signature}"
    yield "cut signature", f"{head}.{body}.{signature[:-4]}"
    yield "no signature", f"{head}.{body}."
    yield "claims that are no object", f"{head}.{part([claims])}.{signature}"
    yield "claims that nest", f"{head}.{encoded(b'[' * 4000)}.{signature}"
    yield "no base64", "a!.b!.c!"
    yield "an opaque access token", "ya29.a0AfH6SMBx.abc"


async def test_forgeries_are_nobodys_and_fetch_nothing(call, issuer, anna, ticks):
    assert await status(call, issuer.token()) == 200
    fetched = issuer.fetches
    for wrong, text in forgeries(issuer):
        ticks.advance(PATIENCE_SECONDS)
        answer = await call.bearing(text).get("/api/v1/tasks")
        assert (answer.status, answer.json["code"]) == (401, "unauthorized"), wrong
    # Time passed: one look for the unknown name was allowed a minute; none went where a token said.
    assert issuer.fetches - fetched <= 3


async def test_the_same_subject_of_another_issuer_is_somebody_else(call, issuer, engine):
    await add_member(engine.database, 1, issuer="https://other.example", subject="1001", role="admin", actor="ada")
    assert await status(call, issuer.token()) == 403


async def test_ten_thousand_names_cost_one_fetch_a_minute(call, issuer, anna, ticks):
    assert (await status(call, issuer.token()), issuer.fetches) == (200, 1)
    for number in range(40):
        await call.bearing(issuer.token(kid=f"k{number}", key=rsa_key(9))).get("/api/v1/tasks")
    assert issuer.fetches == 1
    ticks.advance(60)
    for number in range(40):
        await call.bearing(issuer.token(kid=f"k{number}", key=rsa_key(9))).get("/api/v1/tasks")
    assert issuer.fetches == 2


async def test_a_new_key_is_found_and_an_old_one_forgotten(call, issuer, anna, ticks):
    assert await status(call, issuer.token()) == 200
    issuer.keys = [public(rsa_key(1), "next")]
    ticks.advance(60)
    assert await status(call, issuer.token(kid="next", key=rsa_key(1))) == 200
    assert await status(call, issuer.token(sub="1001", iat=int(time.time()) - 5)) == 401


@pytest.mark.parametrize("mood", ["down", "odd", "endless", "elsewhere"])
async def test_keys_at_hand_stay_good_while_the_issuer_is_away(call, issuer, anna, ticks, mood):
    assert await status(call, issuer.token()) == 200
    issuer.mood = mood
    for hours in range(3):
        ticks.advance(2 * HOUR)
        assert await status(call, issuer.token(iat=int(time.time()) - hours)) == 200
    assert await status(call, issuer.token(kid="nine", key=rsa_key(9))) == 401


async def test_a_slow_issuer_holds_up_nobody_with_a_known_key(call, issuer, anna, ticks):
    assert await status(call, issuer.token()) == 200
    issuer.is_held.clear()
    ticks.advance(2 * HOUR)
    assert await status(call, issuer.token(iat=int(time.time()) - 3)) == 200
    issuer.is_held.set()


async def test_without_any_key_it_is_said_so_and_tried_again_a_minute_later(call, issuer, anna, ticks):
    issuer.mood = "down"
    answer = await call.bearing(issuer.token()).get("/api/v1/tasks")
    assert (answer.status, answer.json["code"]) == (503, "identity_provider_unavailable")
    issuer.mood = "keys"
    assert (await status(call, issuer.token()), issuer.fetches) == (503, 1)
    ticks.advance(60)
    assert (await status(call, issuer.token()), issuer.fetches) == (200, 2)


async def test_keys_are_not_fetched_from_elsewhere(call, issuer, anna):
    issuer.mood = "elsewhere"
    assert (await status(call, issuer.token()), issuer.fetches) == (503, 1)


async def test_many_at_once_wait_for_one_fetch(call, issuer, anna):
    found = await asyncio.gather(*(status(call, issuer.token(iat=int(time.time()) - n)) for n in range(8)))
    assert (set(found), issuer.fetches) == ({200}, 1)


async def test_a_key_that_is_not_for_this_is_not_used(call, issuer, anna, ticks):
    unfit = [{"use": "enc"}, {"alg": "RS512"}, {"kty": "oct", "k": "c2VjcmV0"}, {"kid": None}, {"n": "AQAB"}]
    for number, changes in enumerate(unfit):
        issuer.keys = [public(rsa_key(), "one", **changes), public(rsa_key(1), f"next{number}")]
        ticks.advance(2 * PAUSE_SECONDS)
        assert await status(call, issuer.token(kid=f"next{number}", key=rsa_key(1))) == 200
        assert await status(call, issuer.token()) == 401, changes


async def test_a_short_key_is_not_used(call, issuer, anna):
    issuer.keys.append(public(rsa_key(0, 1024), "short"))
    assert await status(call, issuer.token(kid="short", key=rsa_key(0, 1024))) == 401


class TestGoogle:
    @pytest.fixture
    def holdfast_settings(self, issuer):
        auth = AuthSettings(google_client_ids=(AUDIENCE,), google_jwks_url=issuer.url, oidc_hd=("corp.example",))
        return Settings(port=0, auth=auth)

    async def test_its_two_spellings_are_one_issuer_and_no_other_is(self, call, issuer, engine):
        await add_member(engine.database, 1, issuer="google", subject="1001", role="viewer", actor="ada")
        for spelling in ("https://accounts.google.com", "accounts.google.com"):
            assert await status(call, issuer.token(iss=spelling)) == 200
        for spelling in ("http://accounts.google.com", "https://accounts.google.com/", "google", issuer.issuer):
            assert await status(call, issuer.token(iss=spelling)) == 401
        [member] = await list_members(engine.database, 1)
        assert member.issuer == GOOGLE


async def test_a_server_does_not_start_with_half_an_issuer(engine, issuer, monkeypatch):
    for changes in (
        {"oidc_audiences": ()},
        {"oidc_jwks_url": None},
        {"oidc_jwks_url": "http://id.example/keys"},
        {"oidc_jwks_url": "file:///etc/passwd"},
        {"oidc_issuer": GOOGLE, "google_client_ids": ("x",)},
    ):
        monkeypatch.setattr(engine, "settings", settings_for(issuer, **changes))
        with pytest.raises(InvalidSettings) as refused:
            async with serving(engine):
                pass
        assert refused.value.code == "oidc_incomplete", changes
