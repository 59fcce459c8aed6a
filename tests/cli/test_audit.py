"""`holdfast audit …`: the log as people read it, and the proof that nobody rewrote it."""

from __future__ import annotations

import pytest

from holdfast.core.tasks.outcome import Failed
from holdfast.testing.factories import a_failed_task, a_failure, a_running_task, a_task


async def plain_changes(harness):
    await harness.enqueue(a_task(queue="mail"))
    await harness.pause("mail", actor="anna", reason="smtp is down")
    lease = await a_running_task(harness)
    await harness.settle(lease, Failed(a_failure("validation: no such customer")))
    await harness.retry(lease.task_id, actor="bob", reason="fixed")


async def forge(harness):
    async with harness.engine.database.session() as session:
        await session.execute("""
            alter table holdfast.audit disable trigger all;
            update holdfast.audit set actor = 'nobody' where seq = 1;
            alter table holdfast.audit enable always trigger append_only""")


def test_an_empty_log_is_an_empty_array_and_sound(holdfast):
    assert holdfast("audit", "list", "-o", "json").json == []
    assert holdfast("audit", "verify", "-o", "json").json == {"checked": 0, "anchor": None, "broken": None}


def test_commands_leave_who_and_why(holdfast, seed):
    async def work(harness):
        await harness.enqueue(a_task(queue="mail"))
        await harness.worker_id()

    seed(work)
    holdfast("queue", "pause", "mail", "--reason", "smtp is down")
    holdfast("worker", "drain", "1", "--reason", "new kernel")
    drained, paused = holdfast("audit", "list", "-o", "json").json
    assert (paused["verb"], paused["subject_kind"], paused["subject_id"]) == ("queue.pause", "queue", "mail")
    assert (paused["reason"], paused["before"]["paused"], paused["after"]["paused"]) == ("smtp is down", False, True)
    assert (drained["verb"], drained["reason"]) == ("worker.drain", "new kernel")
    assert paused["actor"].startswith("cli:")


@pytest.fixture
def changed(seed):
    seed(plain_changes)


def test_the_list_is_filtered(holdfast, changed, subtests):
    cases = [
        ((), [2, 1]),
        (("--actor", "anna"), [1]),
        (("--verb", "task.retry"), [2]),
        (("--subject", "queue"), [1]),
        (("--subject", "queue:mail"), [1]),
        (("--subject", "queue:other"), []),
        (("--limit", "1"), [2]),
        (("--before", "2"), [1]),
        (("--since", "1h"), [2, 1]),
    ]
    for options, rows in cases:
        with subtests.test(options=options, rows=rows):
            assert [row["seq"] for row in holdfast("audit", "list", "-o", "json", *options).json] == rows


def test_the_table_says_what_changed(holdfast, seed):
    seed(plain_changes)
    shown = holdfast("audit", "list", "-o", "table").out
    assert "paused no → yes" in shown and "state failed → queued" in shown and "smtp is down" in shown
    assert holdfast("audit", "list").out.splitlines()[1].split("\t")[2:5] == ["anna", "queue.pause", "queue:mail"]


def test_a_sound_chain_gives_an_anchor_that_holds(holdfast, seed):
    seed(plain_changes)
    ran = holdfast("audit", "verify")
    assert (ran.code, ran.out.startswith("2:")) == (0, True)
    anchor = ran.out.strip()
    assert holdfast("audit", "verify", "--anchor", anchor).code == 0
    assert holdfast("audit", "verify", "--anchor", anchor.partition(":")[2]).code == 0
    assert holdfast("audit", "verify", "--anchor", "0" * 63 + "1").code == 1
    assert holdfast("audit", "verify", "--anchor", "nonsense").code == 2


@pytest.mark.breaks_invariants
@pytest.mark.superuser
def test_a_forged_row_is_named_with_exit_code_1(holdfast, seed):
    seed(plain_changes)
    seed(forge)
    ran = holdfast("audit", "verify", "-o", "json")
    assert (ran.code, ran.json["broken"]["seq"], ran.json["broken"]["code"]) == (1, 1, "audit_row_changed")
    assert "Row 1 was changed after it was written." in holdfast("audit", "verify").out
    assert holdfast("verify").code == 1


def test_changes_are_told_in_peoples_words(holdfast, seed):
    async def work(harness):
        await harness.enqueue(a_task(queue="mail"))
        await harness.pause("mail")
        return await a_failed_task(harness)

    task_id = seed(work)
    holdfast("dead", "ignore", "--task", task_id, "--reason", "known")
    holdfast("dead", "redrive", "--task", task_id, "--reason", "fixed")
    out = holdfast("audit", "list", "-o", "table").out
    assert "state failed → queued" in out
    assert "state open → ignored, disposition – → ignored" in out
    assert "paused no → yes" in out
    assert not any(word in out for word in ("None", "True", "False", "{", "'"))
