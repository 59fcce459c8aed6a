"""Reporters over HTTP: whoever may add a webhook names only what the server's operator allowed."""

from __future__ import annotations

import sys

import pytest
from tests.engine.reporting import REFERENCE, URL, Spy, installed

from holdfast.settings.settings import Settings, WebhookSettings


@pytest.fixture
def holdfast_settings():
    return Settings(port=0, webhooks=WebhookSettings(reporters=(REFERENCE,)))


@pytest.fixture
async def admin(call, token):
    return call.bearing(await token("admin"))


async def test_another_than_those_allowed_is_refused_stores_nothing_and_imports_nothing(admin, monkeypatch, tmp_path):
    (tmp_path / "shop_trap.py").write_text("def reporter(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    answer = await admin.post("/api/v1/webhooks", {"name": "hook", "url": "reporter:shop_trap:reporter"})
    assert (answer.status, answer.json["code"]) == (422, "reporter_not_allowed")
    assert (await admin.get("/api/v1/webhooks")).json["webhooks"] == []
    assert "shop_trap" not in sys.modules


async def test_one_that_is_allowed_is_added_without_a_secret_and_tried(admin, monkeypatch):
    installed(monkeypatch, spy := Spy())
    answer = await admin.post("/api/v1/webhooks", {"name": "hook", "url": URL, "kinds": ["task.*"]})
    assert (answer.status, answer.json) == (201, {"name": "hook", "secret": None})
    assert (await admin.get("/api/v1/webhooks/hook")).json["url"] == URL
    answer = await admin.post("/api/v1/webhooks/hook/test", {})
    assert (answer.status, answer.json["is_delivered"], spy.kinds) == (200, True, ["webhook.test"])
    answer = await admin.post("/api/v1/webhooks/hook/rotate", {})
    assert (answer.status, answer.json["code"]) == (400, "reporter_has_no_secret")
    assert (await admin.post("/api/v1/webhooks/hook/pause", {})).json["is_changed"]
    assert (await admin.post("/api/v1/webhooks/hook/resume", {})).json["is_changed"]
