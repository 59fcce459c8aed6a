"""Addresses of carriers: one for all queues or one for each, and what is refused before anything starts."""

from __future__ import annotations

import sys

import pytest

from holdfast.errors import Invalid, InvalidSettings, Unavailable
from holdfast.settings.settings import Settings, WakeSettings
from holdfast.wakeups.carriers import address_for, addresses_of, is_external, open_transport, require_carrier

SQS = WakeSettings(over="sqs", sqs_queue_url="https://sqs.eu-west-1.amazonaws.com/1/all")
EACH = WakeSettings(over="sqs", sqs_queue_url="https://sqs.eu-west-1.amazonaws.com/1/h-{queue}")
REDIS = WakeSettings(over="redis", redis_url="redis://127.0.0.1:1/0", redis_key_prefix="shop")


def test_the_default_is_postgresql_whatever_else_is_set():
    settings = Settings.load({"REDIS_URL": "redis://127.0.0.1:1", "IMPLEMENTATION_SQS_QUEUE_URL": "https://x/1/y"})
    assert not is_external(settings.wake)
    require_carrier(settings.wake, None)


@pytest.mark.parametrize("name", ["HOLDFAST_REDIS_URL", "REDIS_URL", "TASK_TRACKING_REDIS_URL"])
def test_redis_is_found_under_each_of_its_names(name):
    settings = Settings.load({"HOLDFAST_WAKE": "redis", name: "redis://127.0.0.1:1/0"})
    assert settings.wake.redis_url == "redis://127.0.0.1:1/0"


def test_sqs_is_found_under_its_other_name():
    settings = Settings.load({"HOLDFAST_WAKE": "sqs", "IMPLEMENTATION_SQS_QUEUE_URL": "https://x/1/y"})
    assert settings.wake.sqs_queue_url == "https://x/1/y"


def test_all_queues_share_an_address_unless_it_names_them():
    assert address_for(SQS, "mail") == address_for(SQS, "pdf") == SQS.sqs_queue_url
    assert address_for(EACH, "mail") == "https://sqs.eu-west-1.amazonaws.com/1/h-mail"
    assert address_for(REDIS, "mail") == "shop:wake"
    assert addresses_of(SQS, None) == [SQS.sqs_queue_url]
    assert len(addresses_of(EACH, ["mail", "pdf"])) == 2


def test_a_worker_of_every_queue_needs_one_address():
    with pytest.raises(InvalidSettings) as refused:
        addresses_of(EACH, None)
    assert refused.value.code == "carrier_needs_queues"


@pytest.mark.parametrize("over", ["sqs", "redis"])
def test_a_carrier_without_an_address_is_refused(over):
    with pytest.raises(InvalidSettings) as refused:
        Settings(wake=WakeSettings(over=over))
    assert refused.value.code == "carrier_without_address"


@pytest.mark.parametrize(("settings", "module", "extra"), [(SQS, "boto3", "aws"), (REDIS, "redis.asyncio", "redis")])
def test_a_missing_library_is_named_with_its_extra(settings, module, extra, monkeypatch):
    for name in ("holdfast.wakeups.sqs", "holdfast.wakeups.redis_streams"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(Invalid) as refused:
        require_carrier(settings, None)
    assert refused.value.code == "extra_missing" and f"holdfast[{extra}]" in refused.value.advice


def test_an_address_that_is_none_is_refused_without_its_password():
    settings = WakeSettings(over="redis", redis_url="redos://:hunter2@127.0.0.1/0")
    with pytest.raises(InvalidSettings) as refused:
        open_transport(settings, "shop:wake")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("over", "address", "says"),
    [
        ("nowhere_at_all:make", "", "cannot be imported"),
        ("tests.wakeups.own:missing", "", "cannot be imported"),
        ("tests.wakeups.own:make", "nowhere", "it raised OSError"),
        ("tests.wakeups.own:make_half", "", r"has no publish\(\)"),
    ],
)
def test_a_carrier_of_ones_own_that_cannot_be_used_is_said_at_start(over, address, says):
    with pytest.raises(InvalidSettings, match=says) as refused:
        require_carrier(WakeSettings(over=over, address=address), None)
    assert refused.value.code == "carrier_unusable" and "hunter2" not in refused.value.detail


async def test_whatever_a_carrier_of_ones_own_raises_it_is_away():
    transport = open_transport(WakeSettings(over="tests.wakeups.own:make"), "here")
    with pytest.raises(Unavailable) as away:
        await transport.publish([None])
    assert away.value.code == "carrier_away"
    await transport.close()


@pytest.mark.parametrize("name", ["kafka", "a b:c", "module:", ":factory", "os:path.join"])
def test_a_carrier_is_one_of_ours_or_named_by_module_and_factory(name):
    with pytest.raises(InvalidSettings, match="module:factory"):
        Settings(wake=WakeSettings(over=name))


def test_what_an_sqs_name_cannot_hold_is_replaced():
    assert address_for(EACH, "mail.eu:fast") == "https://sqs.eu-west-1.amazonaws.com/1/h-mail-eu-fast"
    assert addresses_of(EACH, ["a.b", "a:b"]) == ["https://sqs.eu-west-1.amazonaws.com/1/h-a-b"]
