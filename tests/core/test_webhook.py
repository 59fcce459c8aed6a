"""Which events a webhook wants, and what follows a failure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

import holdfast
from holdfast.core.dead_letters.campaign import CampaignState
from holdfast.core.webhooks import KINDS, EventFilter, after_failure, body_of, delivery_id
from holdfast.engine.webhooks.commands import valid_kinds
from holdfast.errors import Invalid


@pytest.mark.parametrize(
    ("wanted", "is_wanted"),
    [
        (EventFilter(), True),
        (EventFilter(kinds=["task.failed"]), True),
        (EventFilter(kinds=["task.*"]), True),
        (EventFilter(kinds=["task.completed", "execution.*"]), False),
        (EventFilter(queues=["mail"]), True),
        (EventFilter(queues=["other"]), False),
        (EventFilter(actions=["shop.charge"]), True),
        (EventFilter(actions=["shop.refund"]), False),
        (EventFilter(kinds=["task.failed"], queues=["mail"], actions=["shop.charge"]), True),
        (EventFilter(kinds=["task.failed"], queues=["mail"], actions=["shop.refund"]), False),
    ],
)
def test_a_filter_wants_what_fits_all_of_it(wanted, is_wanted):
    assert wanted.wants("task.failed", "mail", "shop.charge") is is_wanted


def test_an_event_about_no_queue_fits_no_queue():
    assert not EventFilter(queues=["mail"]).wants("breaker.opened", None, "shop.charge")


_TELLS = re.compile(r"insert into holdfast\.event \([^)]*\)\s+(?=select\b)")
_NAMED = re.compile(r"(?:\bthen|\belse)\s+'([^']+)'")
_DOTTED = re.compile(r"'([a-z_]+\.[a-z_]+)'")


def at_top(text: str, separator: str) -> list[str]:
    """A text in parts, where the separator stands in no parentheses; it ends with the one that was opened before it."""
    parts, depth, start = [], 0, 0
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth < 0 or sign == ";":
            return [*parts, text[start:place]]
        if depth == 0 and text.startswith(separator, place):
            parts.append(text[start:place])
            start = place + len(separator)
    return [*parts, text[start:]]


def told() -> tuple[set[str], set[str]]:
    """Every kind that some SQL inserts as an event, and the beginnings of those that it puts together."""
    folder = Path(holdfast.__file__).parent / "store"
    kinds, beginnings = set(), set()
    for text in (path.read_text() for path in sorted(folder.rglob("*.sql"))):
        for found in _TELLS.finditer(text):
            for select in at_top(text[found.end() :], "union all"):
                kind = at_top(select, ",")[1].strip()
                if "||" in kind:
                    beginnings.add(kind.partition("||")[0].strip(" '"))
                elif kind.startswith("'"):
                    kinds.add(kind.strip("'"))
                elif kind.startswith("case"):
                    kinds |= set(_NAMED.findall(kind))
                else:
                    assert re.fullmatch(r"(\w+\.)?kind", kind), f"what does {kind!r} tell?"
                    kinds |= set(_DOTTED.findall(select))
    return kinds, beginnings


def test_every_kind_that_is_told_can_be_asked_for():
    kinds, beginnings = told()
    assert "stateful_dead_letter_retry_requeued" in kinds and "task.queued" in kinds
    assert kinds <= KINDS
    assert beginnings == {"campaign.", "dead_letter."}
    composed = {f"campaign.{state}" for state in CampaignState} | {"task.skipped", "task.upstream_failed"}
    assert KINDS - kinds <= composed


@pytest.mark.parametrize("kind", ["stateful_dead_letter_retry_requeued", "dead_letter.*", "task.failed"])
def test_what_is_told_is_accepted(kind):
    assert valid_kinds([kind]) == [kind]


def test_what_nobody_tells_is_refused():
    with pytest.raises(Invalid):
        valid_kinds(["stateful_dead_letter_retry_requeued.*"])


def later(failures, **given):
    return after_failure(failures, "it answered 500", failures_max=20, jitter=0.5, **given)


def test_pauses_grow_to_a_bound():
    assert [later(n).seconds for n in (1, 2, 3, 9, 10, 19)] == [1, 2, 4, 256, 300, 300]


def test_a_receiver_may_ask_for_more_time_but_not_for_ever():
    assert later(1, status=503, retry_after="120").seconds == 120
    assert later(9, status=503, retry_after="10").seconds == 256
    assert later(1, status=503, retry_after="999999").seconds == 3600
    assert later(1, status=503, retry_after="soon").seconds == 1


def test_too_many_failures_pause_with_the_last_one():
    assert later(20).pause_reason == "20 consecutive deliveries failed; the last one: it answered 500."
    assert later(19).pause_reason is None


def test_a_receiver_that_is_gone_is_paused_at_once():
    assert later(1, status=410).pause_reason


def test_an_event_has_one_id_and_one_body():
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert delivery_id("0a1b2c3d", "77:12:1") == "evt_0a1b2c3d_77_12_1"
    assert body_of("task.failed", at, {"task_id": "1"}) == (
        b'{"type":"task.failed","timestamp":"2026-01-02T03:04:05+00:00","data":{"task_id":"1"}}'
    )
