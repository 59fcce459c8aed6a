"""What can be no webhook is refused, with a code, and nothing is stored."""

from __future__ import annotations

import pytest

from holdfast.engine.audit import list_audit
from holdfast.engine.webhooks.commands import (
    add_webhook,
    list_webhooks,
    valid_kinds,
)
from holdfast.errors import Invalid
from holdfast.settings.settings import EgressSettings, Settings

TENANT = 1


@pytest.fixture
def holdfast_settings():
    return Settings(egress=EgressSettings(allow=("127.0.0.0/8",), ports="*"))


@pytest.mark.parametrize(
    ("name", "url", "given", "code"),
    [
        ("hook", "http://169.254.169.254/", {}, "url_not_allowed"),
        ("hook", "file:///etc/passwd", {}, "url_not_allowed"),
        ("two words", "http://127.0.0.1/", {}, "invalid_name"),
        ("hook", "http://127.0.0.1/", {"kinds": ["task.fialed"]}, "invalid_event_kind"),
        ("hook", "http://127.0.0.1/", {"queues": ["no queue"]}, "invalid_name"),
        ("hook", "http://127.0.0.1/", {"actions": ["a b"]}, "invalid_name"),
        ("hook", "http://127.0.0.1/", {"actions": [f"a{n}" for n in range(101)]}, "invalid_filter"),
    ],
)
async def test_what_cannot_be_is_refused_and_nothing_is_stored(engine, name, url, given, code):
    with pytest.raises(Invalid) as refused:
        await add_webhook(engine, TENANT, name, url, actor="anna", **given)
    assert refused.value.code == code
    assert await list_webhooks(engine.database, TENANT) == []
    assert await list_audit(engine.database, TENANT) == []


def test_kinds_are_checked_and_a_near_one_is_named():
    assert valid_kinds(["task.failed", "execution.*", "task.failed"]) == ["task.failed", "execution.*"]
    with pytest.raises(Invalid) as refused:
        valid_kinds(["task.fialed"])
    assert "task.failed" in refused.value.advice
