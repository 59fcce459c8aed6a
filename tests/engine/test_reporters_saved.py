"""A reporter is saved, tried and steered as a webhook; one that nobody allowed is refused, and never imported."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from tests.engine.reporting import REFERENCE, URL, Spy, installed

from holdfast.engine.audit import list_audit
from holdfast.engine.engine import Engine
from holdfast.engine.webhooks.commands import (
    add_webhook,
    list_webhooks,
    pause_webhook,
    rotate_webhook,
    show_webhook,
    try_webhook,
)
from holdfast.engine.webhooks.deliver import deliver_webhooks_once
from holdfast.errors import Invalid
from holdfast.settings.settings import Settings, WebhookSettings

TENANT = 1


@pytest.fixture
def holdfast_settings():
    return Settings(webhooks=WebhookSettings(timeout_seconds=5, reporters=(REFERENCE,)))


@pytest.fixture
def spy(monkeypatch):
    made = Spy()
    installed(monkeypatch, made)
    return made


@pytest.fixture
def trap(monkeypatch, tmp_path):
    """A module that nobody allowed, where an import would find it."""
    (tmp_path / "shop_trap.py").write_text("def reporter(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    assert "shop_trap" not in sys.modules


@pytest.fixture
async def local(engine):
    """The same database with ENV local."""
    async with Engine(engine.database.url, replace(engine.settings, env="local")) as made:
        yield made


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("reporter:shop_trap:reporter", "reporter_not_allowed"),
        ("reporter:shop_events:other", "reporter_not_allowed"),
        (f"reporter:{REFERENCE}.x", "reporter_not_allowed"),
        ("REPORTER:shop_events:reporter", "url_not_allowed"),
        (f" {URL}", "url_not_allowed"),
    ],
)
async def test_one_that_nobody_allowed_is_refused_and_neither_stored_nor_imported(engine, trap, url, code):
    with pytest.raises(Invalid) as refused:
        await add_webhook(engine, TENANT, "hook", url, actor="anna")
    assert refused.value.code == code
    assert await list_webhooks(engine.database, TENANT) == []
    assert await list_audit(engine.database, TENANT) == []


@pytest.mark.parametrize(
    "reference",
    [
        "",
        ":",
        "shop_trap",
        "shop_trap:",
        ":reporter",
        "shop_trap:reporter\n",
        "shop_trap:a.b",
        "..shop_trap:a",
        "a b:c",
    ],
)
async def test_what_names_no_factory_is_refused_everywhere(local, trap, reference):
    with pytest.raises(Invalid) as refused:
        await add_webhook(local, TENANT, "hook", f"reporter:{reference}", actor="anna")
    assert (refused.value.code, "reporter:module:factory" in refused.value.advice) == ("reporter_not_allowed", True)
    assert await list_webhooks(local.database, TENANT) == []


async def test_one_that_is_not_allowed_any_more_is_neither_tried_nor_imported(engine, local, trap, harness):
    await add_webhook(local, TENANT, "hook", "reporter:shop_trap:reporter", actor="anna")
    with pytest.raises(Invalid) as refused:
        await try_webhook(engine, TENANT, "hook", actor="anna")
    assert refused.value.code == "reporter_not_allowed"
    await deliver_webhooks_once(engine, None)


async def test_on_a_machine_of_ones_own_any_may_be_named(local, spy, monkeypatch):
    monkeypatch.setitem(sys.modules, "shop_mine", sys.modules["shop_events"])
    await add_webhook(local, TENANT, "hook", "reporter:shop_mine:reporter", actor="anna")
    assert (await try_webhook(local, TENANT, "hook", actor="anna")).is_delivered


async def test_it_is_saved_without_a_secret_and_importing_nothing(engine):
    made = await add_webhook(engine, TENANT, "hook", URL, kinds=["task.*"], actor="anna")
    assert (made.name, made.secret) == ("hook", None)
    assert "shop_events" not in sys.modules
    assert await engine.database.fetchval("select secret from holdfast.webhook") == ""
    [record] = await list_audit(engine.database, TENANT)
    assert (record.verb, record.after["url"]) == ("webhook.add", URL)


async def test_there_is_nothing_to_rotate(engine):
    await add_webhook(engine, TENANT, "hook", URL, actor="anna")
    with pytest.raises(Invalid) as refused:
        await rotate_webhook(engine, TENANT, "hook", actor="anna")
    assert refused.value.code == "reporter_has_no_secret"
    assert refused.value.detail == "hook is a reporter: nothing is signed for it, so it has no secret."
    assert await engine.database.fetchval("select secret from holdfast.webhook") == ""
    assert [row.verb for row in await list_audit(engine.database, TENANT)] == ["webhook.add"]


async def test_a_test_says_whether_it_was_taken_and_moves_nothing(engine, spy):
    await add_webhook(engine, TENANT, "hook", URL, actor="anna")
    await pause_webhook(engine, TENANT, "hook", actor="anna")
    tested = await try_webhook(engine, TENANT, "hook", actor="bert")
    assert (tested.is_delivered, tested.status, tested.sentence) == (True, None, "it took the event")
    [event] = spy.told
    assert (event.kind, event.tenant, event.task_id) == ("webhook.test", "default", None)
    assert event.detail == {"webhook": "hook", "actor": "bert"} and event.delivery_id.startswith("test_")
    assert (spy.made, spy.closed) == (1, 1)

    async def refuse(_event):
        raise ConnectionError("hunter2")

    spy.does = refuse
    tested = await try_webhook(engine, TENANT, "hook", actor="bert")
    assert (tested.is_delivered, tested.sentence) == (False, "its report() raised ConnectionError")
    assert (await show_webhook(engine.database, TENANT, "hook")).failures == 0


async def test_a_test_of_one_that_cannot_be_imported_says_so(engine):
    await add_webhook(engine, TENANT, "hook", URL, actor="anna")
    with pytest.raises(Invalid) as refused:
        await try_webhook(engine, TENANT, "hook", actor="anna")
    assert refused.value.code == "reporter_unusable"


async def test_behind_a_tenants_wall_it_is_saved_and_tried_too(engine, spy):
    walled = engine.of(TENANT)
    await add_webhook(walled, TENANT, "hook", URL, actor="anna")
    assert (await try_webhook(walled, TENANT, "hook", actor="anna")).is_delivered
    assert spy.told[0].tenant == "default"
