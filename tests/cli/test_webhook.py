"""`holdfast webhook …` as people type it."""

from __future__ import annotations

import sys
from functools import partial

import pytest
from tests.cli.conftest import invoke
from tests.engine.reporting import REFERENCE, Spy, installed
from tests.engine.reporting import URL as REPORTER

from holdfast.webhooks import key_of

URL = "http://127.0.0.1:9/hook"


@pytest.fixture
def webhook(holdfast):
    """With loopback allowed."""
    return partial(holdfast, "webhook", HOLDFAST_EGRESS_ALLOW="127.0.0.0/8", HOLDFAST_EGRESS_PORTS="*")


def test_a_webhook_from_its_beginning_to_its_end(webhook):
    added = webhook("add", "hook", URL, "--event", "task.failed", "--event", "execution.*", "--queue", "mail")
    assert (added.code, bool(key_of(added.out.strip()))) == (0, True)
    assert "not shown again" in added.err
    (row,) = webhook("list", "-o", "json").json
    assert (row["name"], row["state"], row["kinds"]) == ("hook", "active", ["task.failed", "execution.*"])
    assert added.out.strip() not in webhook("show", "hook", "-o", "json").out + webhook("show", "hook").out
    rotated = webhook("rotate", "hook", "--grace", "1h", "-o", "json").json
    assert key_of(rotated["secret"]) != key_of(added.out.strip())
    assert webhook("pause", "hook", "--reason", "mending").out == "hook\tpaused\n"
    assert "mending" in webhook("list").out
    assert webhook("resume", "hook", "--from-now").out == "hook\tresumed\n"
    assert webhook("remove", "hook").code == 2, "it asks first"
    assert webhook("remove", "hook", "--yes").out == "hook\tremoved\n"
    assert webhook("list", "-o", "json").json == []


def test_a_test_that_does_not_arrive_says_so_and_fails(webhook):
    webhook("add", "hook", URL)
    tested = webhook("test", "hook")
    assert (tested.code, "not delivered" in tested.out, "no connection" in tested.out) == (1, True, True)


def test_every_change_is_in_the_record(webhook, holdfast):
    webhook("add", "hook", URL, "--reason", "for the pager")
    webhook("rotate", "hook")
    webhook("remove", "hook", "--yes")
    rows = holdfast("audit", "list", "-o", "json").json
    assert [row["verb"] for row in rows] == ["webhook.remove", "webhook.rotate", "webhook.add"]
    assert rows[-1]["reason"] == "for the pager"


def test_a_mistake_is_told_with_its_exit_code(webhook, subtests):
    cases = [
        (("add", "hook", "http://10.0.0.1/"), 2, "url_not_allowed"),
        (("add", "hook", "http://127.0.0.1/", "--event", "task.fialed"), 2, "task.failed"),
        (("show", "nobody"), 3, "webhook_not_found"),
        (("rotate", "nobody", "--grace", "99w"), 2, "invalid_grace"),
    ]
    for arguments, code, said in cases:
        with subtests.test(arguments=arguments, code=code, said=said):
            ran = webhook(*arguments)
            assert (ran.code, said in ran.err) == (code, True), ran.err


@pytest.fixture
def shop_events(monkeypatch):
    spy = Spy()
    installed(monkeypatch, spy)
    return spy


def test_a_reporter_from_its_beginning_to_its_end(holdfast, shop_events):
    webhook = partial(holdfast, "webhook", HOLDFAST_REPORTERS=REFERENCE)
    added = webhook("add", "mine", REPORTER, "--event", "task.*")
    assert (added.code, added.out, added.err) == (0, "mine\tadded\n", "")
    assert webhook("add", "other", REPORTER, "-o", "json").json == {"name": "other", "secret": None}
    assert [row["url"] for row in webhook("list", "-o", "json").json] == [REPORTER, REPORTER]
    tested = webhook("test", "mine")
    assert (tested.code, tested.out.startswith("mine\tdelivered\tit took the event after ")) == (0, True)
    assert shop_events.kinds == ["webhook.test"]
    rotated = webhook("rotate", "mine")
    assert (rotated.code, rotated.out) == (2, "")
    assert rotated.err.startswith("error: mine is a reporter: nothing is signed for it, so it has no secret.")
    assert webhook("pause", "mine").out == "mine\tpaused\n"
    assert webhook("resume", "mine").out == "mine\tresumed\n"
    assert webhook("remove", "mine", "--yes").out == "mine\tremoved\n"


def test_a_reporter_that_nobody_allowed_is_refused(holdfast_url):
    ran = invoke(
        "webhook", "add", "mine", REPORTER, HOLDFAST_URL=holdfast_url, HOLDFAST_REPORTERS="shop.kafka:reporter"
    )
    assert (ran.code, "reporter_not_allowed" in ran.err, "HOLDFAST_REPORTERS" in ran.err) == (2, True, True)
    assert invoke("webhook", "list", "-o", "json", HOLDFAST_URL=holdfast_url).json == []
    assert "shop_events" not in sys.modules
