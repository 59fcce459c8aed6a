"""Addresses of carriers: one for all queues or one for each, and what is refused before anything starts."""

from __future__ import annotations

import sys

import pytest

from holdfast.errors import Invalid, InvalidSettings
from holdfast.settings import Settings, WakeSettings
from holdfast.wake.carriers import address_for, addresses_of, is_external, open_transport, require_carrier

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
    for name in ("holdfast.wake.sqs", "holdfast.wake.redis_streams"):
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
