"""What a hint says and what follows from it: S0's rules for `attempt`, and the verdicts on terminal, stale and held."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.wakeups.hint import BODY_BYTES_MAX, Hint, HintAction, HintedTask, Reader, judge, read_hint

READER = Reader(worker_id=1, tenant_id=1, actions={"shop.charge"}, queues=None)


def attempt_of(text: str) -> int:
    hint = read_hint(f'{{"task_id": "7", "attempt": {text}}}')
    assert hint is not None
    return hint.attempt


def waiting(**fields) -> HintedTask:
    where = {"tenant_id": 1, "lane_id": 3, "action": "shop.charge", "queue": "default"}
    return HintedTask(**{"state": "q", "attempt": 0, "attempts_max": 7} | where | fields)


def verdict(hint: Hint, task: HintedTask, reader: Reader = READER) -> tuple[str, str]:
    judged = judge(hint, task, reader)
    return (judged.verdict.value, judged.reason)


@pytest.mark.parametrize("text", ["1", "2", "2147483648"])
def test_an_attempt_that_is_a_json_integer_above_zero_counts(text):
    assert attempt_of(text) == int(text)


@pytest.mark.parametrize(
    "text", ["0", "-1", "2.0", "2.5", "1e1", '"2"', '"two"', "true", "false", "null", "[2]", '{"n": 2}', "NaN"]
)
def test_a_malformed_attempt_counts_as_the_first(text):
    assert attempt_of(text) == 1


def test_an_absent_attempt_counts_as_the_first():
    assert read_hint('{"task_id": "7"}') == Hint(task_id=7, attempt=1)


def test_other_fields_are_not_read():
    body = {
        "task_id": "7",
        "attempt": 2,
        "taskType": "x",
        "taskSnapshot": {"task_id": "8"},
        "queue": "y",
        "action": "z",
    }
    assert read_hint(json.dumps(body)) == Hint(task_id=7, attempt=2)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "null",
        "7",
        '"7"',
        "[]",
        "{}",
        '{"task_id": null}',
        '{"task_id": ""}',
        '{"task_id": "-7"}',
        '{"task_id": "seven"}',
        '{"task_id": "٧"}',
        '{"task_id": true}',
        '{"task_id": 7.0}',
        '{"task_id": 0}',
        '{"task_id": 9223372036854775808}',
        '{"task_id": "99999999999999999999"}',
        "[" * 100_000,
        '{"task_id": ' + "1" * 5000 + "}",
        '{"task_id": "7", "x": "' + "x" * BODY_BYTES_MAX + '"}',
    ],
)
def test_a_message_that_names_no_task_is_malformed(body):
    assert read_hint(body) is None


@given(st.text() | st.binary())
def test_whatever_arrives_is_read_or_refused(body):
    assert read_hint(body) is None or read_hint(body).task_id > 0


@given(st.integers(1, 2**63 - 1), st.integers(1, 10_000))
def test_what_is_sent_is_what_is_read(task_id, attempt):
    assert read_hint(Hint(task_id=task_id, attempt=attempt).body()) == Hint(task_id=task_id, attempt=attempt)


FIRST = Hint(task_id=7)
RUNNING = waiting(state="r", attempt=1, worker_id=2, has_valid_lease=True)


@pytest.mark.parametrize(
    ("hint", "task", "expected"),
    [
        (FIRST, HintedTask(state=None, is_over=True), ("drop", "terminal")),
        (FIRST, HintedTask(state=None), ("drop", "unknown")),
        (FIRST, waiting(), ("look", "waiting")),
        (FIRST, waiting(attempt=1), ("drop", "stale")),
        (Hint(task_id=7, attempt=2), waiting(), ("drop", "stale")),
        (Hint(task_id=7, attempt=2), waiting(attempt=1), ("look", "waiting")),
        (Hint(task_id=7, attempt=8), waiting(), ("drop", "over_budget")),
        (Hint(task_id=7, attempt=9), waiting(attempt=8), ("look", "waiting")),
        (FIRST, waiting(state="w"), ("drop", "not_due")),
        (FIRST, RUNNING, ("leave", "held_by_another")),
        (Hint(task_id=7, attempt=2), RUNNING, ("drop", "stale")),
        (FIRST, waiting(state="r", attempt=1, worker_id=1, has_valid_lease=True), ("drop", "duplicate")),
        (FIRST, waiting(state="r", attempt=1, worker_id=1, has_valid_lease=False), ("leave", "held_by_another")),
        (FIRST, waiting(state="v", attempt=1), ("leave", "held_by_another")),
        (FIRST, waiting(action="shop.other"), ("leave", "not_served_here")),
        (FIRST, waiting(tenant_id=2), ("leave", "not_served_here")),
        (Hint(task_id=7, sends=1), waiting(sends=2), ("look", "waiting")),
        (Hint(task_id=7, sends=1), waiting(tenant_id=2, sends=2), ("drop", "superseded")),
        (Hint(task_id=7, sends=2), waiting(tenant_id=2, sends=2), ("leave", "not_served_here")),
        (Hint(task_id=7, sends=1), waiting(tenant_id=2), ("leave", "not_served_here")),
        (FIRST, waiting(action="shop.other", sends=2), ("leave", "not_served_here")),
    ],
)
def test_a_hint_is_judged_by_what_the_database_says(hint, task, expected):
    assert verdict(hint, task) == expected


def test_a_hint_for_a_queue_that_is_not_served_is_left():
    reader = Reader(worker_id=1, tenant_id=1, actions={"shop.charge"}, queues=["mail"])
    assert verdict(FIRST, waiting(), reader) == ("leave", "not_served_here")
    assert judge(FIRST, waiting(queue="mail"), reader).verdict is HintAction.LOOK
