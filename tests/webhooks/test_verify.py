"""`holdfast.webhooks.verify`: what a receiver may believe."""

from __future__ import annotations

import base64

import pytest

from holdfast.errors import Conflict, Invalid, Unauthorized
from holdfast.webhooks import key_of, new_secret, signed, verify

SECRET, OTHER = new_secret(), new_secret()
NOW = 1_700_000_000
BODY = '{"type":"task.failed","grün":"✓"}'.encode()


def headers(secrets=(SECRET,), body=BODY, timestamp=NOW, delivery_id="evt_1"):
    return signed(delivery_id, timestamp, body, secrets)


def check(given, body=BODY, secret=SECRET, **options):
    return verify(given, body, secret, now=NOW, **options)


def test_what_was_signed_is_believed():
    delivery = check(headers())
    assert (delivery.id, delivery.timestamp) == ("evt_1", NOW)


def test_the_scheme_is_that_of_standard_webhooks():
    """The example of the specification's own test vectors."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    given = signed("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body, [secret])
    assert given["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_header_names_may_be_written_in_any_case():
    check({name.upper(): value for name, value in headers().items()})


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_missing_header_is_refused(name):
    given = headers()
    del given[name]
    with pytest.raises(Unauthorized) as refused:
        check(given)
    assert refused.value.code == "signature_missing"


def _truncated(given):
    given["webhook-signature"] = given["webhook-signature"][:-4]


def _bare(given):
    given["webhook-signature"] = given["webhook-signature"].removeprefix("v1,")


def _other_version(given):
    given["webhook-signature"] = given["webhook-signature"].replace("v1,", "v2,")


def _empty(given):
    given["webhook-signature"] = "v1,"


def _other_id(given):
    given["webhook-id"] = "evt_2"


def _other_time(given):
    given["webhook-timestamp"] = str(NOW + 1)


def _not_ascii(given):
    given["webhook-signature"] = "v1,ünïcode"


@pytest.mark.parametrize("change", [_truncated, _bare, _other_version, _empty, _other_id, _other_time, _not_ascii])
def test_a_forgery_is_refused(change):
    given = headers()
    change(given)
    with pytest.raises(Unauthorized) as refused:
        check(given)
    assert refused.value.code == "signature_invalid"


def test_another_body_is_refused():
    with pytest.raises(Unauthorized):
        check(headers(), body=BODY + b" ")


def test_another_key_is_refused():
    with pytest.raises(Unauthorized):
        check(headers(), secret=OTHER)


@pytest.mark.parametrize("distance", [-600, -301, 301, 600])
def test_a_delivery_out_of_its_time_is_refused(distance):
    with pytest.raises(Unauthorized) as refused:
        check(headers(timestamp=NOW + distance))
    assert refused.value.code == "timestamp_outside_tolerance"


@pytest.mark.parametrize("distance", [-299, 0, 299])
def test_five_minutes_are_tolerated(distance):
    check(headers(timestamp=NOW + distance))


@pytest.mark.parametrize("stamp", ["", "soon", "-1", "1e9", "1700000000.5", "٣", "9" * 40])
def test_a_timestamp_that_is_none_is_refused(stamp):
    with pytest.raises(Unauthorized):
        check({**headers(), "webhook-timestamp": stamp})


def test_while_a_secret_is_replaced_either_one_is_enough():
    both = headers(secrets=(OTHER, SECRET))
    check(both, secret=SECRET)
    check(both, secret=OTHER)
    check(headers(), secret=[OTHER, SECRET])


def test_the_old_secret_is_worth_nothing_after_the_grace():
    with pytest.raises(Unauthorized):
        check(headers(secrets=(SECRET,)), secret=OTHER)


def test_a_delivery_seen_before_is_a_conflict_and_a_forgery_is_never_noted():
    noted: set[str] = set()

    def seen(delivery_id):
        is_known = delivery_id in noted
        noted.add(delivery_id)
        return is_known

    with pytest.raises(Unauthorized):
        check(headers(secrets=(OTHER,)), seen=seen)
    check(headers(), seen=seen)
    with pytest.raises(Conflict):
        check(headers(), seen=seen)


def test_parsed_text_is_not_what_arrived():
    with pytest.raises(Invalid):
        check(headers(), body=BODY.decode())


@pytest.mark.parametrize("secret", ["", "whsec_", "secret", "whsec_!!", f"whsec_{base64.b64encode(b'short').decode()}"])
def test_what_is_no_secret_is_said_to_be_none(secret):
    with pytest.raises(Invalid) as refused:
        key_of(secret)
    assert refused.value.code == "invalid_secret"


def test_secrets_do_not_repeat():
    assert len({new_secret() for _ in range(100)}) == 100
