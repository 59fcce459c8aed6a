"""`holdfast effect …` and what `task show`, `why` and `retry` say of effects."""

from __future__ import annotations

import pytest
from tests.core.flows import a_flow

from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.effects.gate import AnswerEffect, EffectState, OpenEffect, Sender, answer_effect, open_effect
from holdfast.testing import factories as a


def an_effect(*, state: str | None, ending, compensation: str | None = None):
    """Prepare a task that is over and did one effect; answers its id and the key."""

    async def prepare(harness):
        engine, lease = harness.engine, await a.a_running_task(harness, max_retries=1)
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
        await harness.settle(lease, ending)
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


LINE = "? effect smtp.send (receipt:7) unknown, sent once, last by attempt 1"


@pytest.fixture
def undoable(seed):
    """A dead task with an effect that nobody knows the answer of and that can be undone."""
    failed = Failed(a.a_failure("validation: no such customer"))
    return seed(an_effect(state=None, ending=failed, compensation=a.ACTION))


def test_a_dead_letter_shows_what_its_task_did_and_how_to_undo_it(holdfast, undoable):
    task_id, key = undoable
    [letter] = holdfast("dead", "list", "--task", task_id, "-o", "json").json
    shown = holdfast("dead", "show", letter["dead_letter_id"], "-o", "table")
    assert "compensate" in shown.out and LINE in shown.err
    assert f"holdfast effect compensate {key} --reason TEXT" in shown.err
    [effect] = holdfast("dead", "show", letter["dead_letter_id"], "-o", "json").json["effects"]
    assert (effect["state"], effect["compensation"]) == ("unknown", a.ACTION)


def test_a_dry_re_drive_names_what_may_repeat_and_changes_nothing(holdfast, undoable):
    task_id, key = undoable
    dry = holdfast("dead", "redrive", "--task", task_id, "--dry-run")
    assert (dry.code, f"{LINE}: can be undone by {a.ACTION}; it would be sent again" in dry.err) == (0, True)
    assert f"holdfast effect compensate {key}" in dry.err
    body = holdfast("dead", "redrive", "--task", task_id, "--dry-run", "-o", "json").json
    assert [one["idempotency_key"] for one in body["unknown_effects"]] == [key]
    assert holdfast("task", "show", task_id, "-o", "json").json["state"] == "failed"


def test_a_dry_re_drive_of_a_group_counts_what_may_repeat(holdfast, undoable):
    [group] = holdfast("dead", "groups", "-o", "json").json
    fingerprint = group["fingerprint"]
    plans = [
        holdfast("dead", "redrive", "--group", fingerprint, "--dry-run", "-o", "json").json,
        holdfast("campaign", "start", "--group", fingerprint, "--dry-run", "-o", "json").json,
    ]
    counted = {"name": "smtp.send", "receipts": 0, "unknown": 1, "compensable": 1}
    assert [plan["effects"] for plan in plans] == [[counted], [counted]]
    said = "0 with a receipt, 1 may repeat, 1 can be undone"
    assert said in holdfast("campaign", "start", "--group", fingerprint, "--dry-run", "-o", "table").out
    assert said in holdfast("dead", "redrive", "--group", fingerprint, "--reason", "x", "--yes").err


async def a_failed_run(harness):
    """A run whose second node failed after an effect that nobody knows the answer of."""
    engine = harness.engine
    run = await harness.runs.start(a_flow("a>b"))
    await harness.settle(await harness.claim_one(), Completed(b"1"))
    lease = await harness.claim_one()
    wanted = OpenEffect(name="smtp.send", user_key="receipt:7", ordinal=0, digest=b"")
    await open_effect(engine.database, engine.catalog, Sender(claimed=lease.claimed, tenant="default"), wanted)
    await harness.settle(lease, Failed(a.a_failure("validation: no such customer")))
    return run, lease.task_id


def test_retrying_a_run_names_what_may_repeat_before_and_after(holdfast, seed):
    run, task_id = seed(a_failed_run)
    dry = holdfast("run", "retry", run, "--dry-run", "-o", "json").json
    assert (dry["reset"], dry["roots"], len(dry["unknown_effects"])) == (["b"], ["b"], 1)
    assert f"{LINE}; it would be sent again" in holdfast("run", "retry", run, "--dry-run").err
    assert f"{LINE}; it would be sent again" in holdfast("dead", "redrive", "--task", task_id, "--dry-run").err
    assert holdfast("run", "show", run, "-o", "json").json["state"] == "failed"
    assert holdfast("run", "retry", run).code == 2, "a reason is needed"
    done = holdfast("run", "retry", run, "--reason", "fixed")
    assert (done.out, f"{LINE}; it is sent again under the same key." in done.err) == (f"{run}\t1\n", True)
    assert holdfast("run", "retry", run, "--dry-run").code == 5


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


def test_what_was_undone_is_not_said_to_repeat(holdfast, undoable):
    """Once undone, nothing says that it is sent again; a re-drive is warned of, and fails for good."""
    task_id, key = undoable
    [letter] = holdfast("dead", "list", "--task", task_id, "-o", "json").json
    assert "compensate" in letter["recovery_options"]
    undone = holdfast("effect", "compensate", key, "--reason", "wrong", "--yes", "-o", "json").json["task_id"]
    why = holdfast("task", "why", task_id, "-o", "table").out
    assert f"was undone by task {undone}" in why and "effect_compensated" in why
    assert "would send what is unknown again" not in why
    [letter] = holdfast("dead", "list", "--task", task_id, "-o", "json").json
    assert letter["recovery_options"] == ["retry", "ignore", "abandon"]
    [group] = holdfast("dead", "groups", "-o", "json").json
    plan = holdfast("dead", "redrive", "--group", group["fingerprint"], "--dry-run", "-o", "json").json
    assert [one["unknown"] for one in plan["effects"]] == [0]
    dry = holdfast("dead", "redrive", "--task", task_id, "--dry-run", "-o", "json").json
    assert (dry["unknown_effects"], [one["idempotency_key"] for one in dry["undone_effects"]]) == ([], [key])
    done = holdfast("dead", "redrive", "--task", task_id, "--reason", "fixed")
    assert f"was undone by task {undone}" in done.err and "effect_compensated" in done.err
    assert "it is sent again" not in done.err
