"""`holdfast effect …` and what `task show`, `why` and `retry` say of effects."""

from __future__ import annotations

import pytest

from holdfast.core.outcome import Completed, Failed
from holdfast.dispatcher.effects import AnswerEffect, EffectState, OpenEffect, Sender, answer_effect, open_effect
from holdfast.testing import factories as a


def an_effect(*, state: str | None, ending, compensation: str | None = None):
    """Prepare a task that is over and did one effect; answers its id and the key."""

    async def prepare(dispatcher):
        engine, lease = dispatcher.engine, await a.a_running_task(dispatcher, max_retries=1)
        policy = engine.catalog.policy(lease.claimed.policy_id)
        await engine.catalog.declare(1, a.ACTION, "default", policy, "")
        arguments = None if compensation is None else b"[[7],{}]"
        wanted = OpenEffect(
            name="smtp.send",
            user_key="receipt:7",
            ordinal=0,
            digest=b"",
            compensation=compensation,
            arguments=arguments,
        )
        gate = await open_effect(
            engine.database, engine.catalog, Sender(claimed=lease.claimed, tenant="default"), wanted
        )
        if state is not None:
            answer = AnswerEffect(key=gate.key, state=EffectState(state), receipt=b'{"id": 9}')
            await answer_effect(engine.database, lease.claimed, answer)
        await dispatcher.settle(lease, ending)
        return lease.task_id, gate.key

    return prepare


@pytest.fixture
def unknown(seed):
    """A failed task with an effect that nobody knows the answer of."""
    return seed(an_effect(state=None, ending=Failed(a.a_failure("validation: no such customer"))))


def test_list_shows_effects_and_filters_them(holdfast, unknown):
    task_id, key = unknown
    [row] = holdfast("effect", "list", "--task", task_id, "-o", "json").json
    assert (row["effect"], row["user_key"], row["state"], row["idempotency_key"]) == (
        "smtp.send",
        "receipt:7",
        "unknown",
        key,
    )
    assert holdfast("effect", "list", "--state", "done", "-o", "json").json == []
    assert holdfast("effect", "list", "-o", "plain").out.split("\t")[:3] == [task_id, "unknown", "smtp.send"]
    assert holdfast("effect", "list", "--state", "lost").code == 2


def test_show_why_and_retry_tell_what_is_unknown(holdfast, unknown):
    task_id, _ = unknown
    line = "? effect smtp.send (receipt:7) unknown, sent once, last by attempt 1"
    assert line in holdfast("task", "show", task_id).out
    assert "effect smtp.send (receipt:7) is unknown" in holdfast("task", "why", task_id, "-o", "table").out
    assert f"{line}; it is sent again under the same key." in holdfast("task", "retry", task_id).err


def test_retry_names_unknown_effects_for_programs_too(holdfast, unknown):
    body = holdfast("task", "retry", unknown[0], "-o", "json").json
    assert [effect["effect"] for effect in body["unknown_effects"]] == ["smtp.send"]


def test_rulings_are_made_listed_and_repeated(holdfast):
    assert holdfast("effect", "rules").err.startswith("No effect is governed")
    first = holdfast("effect", "allow", "card.charge", "--action", "shop.charge", "--reason", "reviewed")
    assert first.out == "card.charge\tshop.charge\tallowed\n"
    assert holdfast("effect", "deny", "card.charge").out == "card.charge\tevery action\tdenied\n"
    assert holdfast("effect", "deny", "card.charge").out.endswith("denied already\n")
    rows = holdfast("effect", "rules", "-o", "json").json
    assert [(row["action"], row["is_allowed"]) for row in rows] == [("", False), ("shop.charge", True)]
    assert holdfast("effect", "allow", "not a name").code == 2


def test_compensate_enqueues_once(holdfast, seed):
    _, key = seed(an_effect(state="done", ending=Completed(b"1"), compensation=a.ACTION))
    assert holdfast("effect", "compensate", key, "--reason", "wrong").code == 2, "it asks first"
    first = holdfast("effect", "compensate", key, "--reason", "wrong", "--yes", "-o", "json").json
    second = holdfast("effect", "compensate", key, "--reason", "wrong", "--yes", "-o", "json").json
    assert (first["action"], first["is_new"], second["is_new"]) == (a.ACTION, True, False)
    assert first["task_id"] == second["task_id"]
    assert f"undone by task {first['task_id']}" in holdfast("effect", "list").out


def test_what_cannot_be_undone_is_a_conflict(holdfast, unknown):
    assert holdfast("effect", "compensate", unknown[1], "--reason", "wrong", "--yes").code == 5
    assert holdfast("effect", "compensate", "hf-nothing", "--reason", "wrong", "--yes").code == 3
