"""`holdfast task …` against a real database."""

from __future__ import annotations

import json

import pytest

from holdfast.core.tasks.outcome import Completed
from holdfast.store.statements import sql
from holdfast.testing.factories import (
    a_canceled_task,
    a_completed_task,
    a_delayed_task,
    a_failed_task,
    a_retrying_task,
    a_running_task,
    a_task,
)

MAKERS = {
    "running": a_running_task,
    "retrying": a_retrying_task,
    "failed": a_failed_task,
    "canceled": a_canceled_task,
    "completed": a_completed_task,
}


async def one_of_each(harness):
    """A task in every state; answers their ids by state."""
    ids = {"queued": (await harness.enqueue(a_task(queue="mail", tags=("red",)))).task_id}
    for state, make in MAKERS.items():
        made = await make(harness, queue="mail")
        ids[state] = made if isinstance(made, str) else made.task_id
    return ids


async def declare_nothing_but_a_task(harness):
    return (await harness.enqueue(a_task())).task_id


def test_an_empty_list_is_an_empty_array(holdfast):
    ran = holdfast("task", "list", "-o", "json")
    assert (ran.code, ran.out, ran.err) == (0, "[]\n", "")
    ran = holdfast("task", "list")
    assert (ran.code, ran.out, ran.err) == (0, "", "No tasks yet.\n")


def test_an_empty_list_names_its_filters(holdfast):
    assert (
        "No tasks match state failed, queue mail."
        in holdfast("task", "list", "--state", "failed", "--queue", "mail").err
    )


def test_every_state_can_be_listed(holdfast, seed):
    ids = seed(one_of_each)
    for state, task_id in ids.items():
        rows = holdfast("task", "list", "--state", state, "-o", "json").json
        assert [(row["task_id"], row["state"]) for row in rows] == [(task_id, state)]
    both = holdfast("task", "list", "--state", "failed,canceled", "-o", "json").json
    assert {row["state"] for row in both} == {"failed", "canceled"}
    assert [row["task_id"] for row in holdfast("task", "list", "-o", "json").json] == sorted(ids.values(), reverse=True)


def test_lists_are_filtered_and_paged(holdfast, seed):
    async def prepare(harness):
        await harness.enqueue_many(a_task(queue="mail", tags=("red",)), [{}] * 3)
        await harness.enqueue(a_task(queue="other", action="shop.ship"))

    seed(prepare)

    def ids(*options):
        return [row["task_id"] for row in holdfast("task", "list", "-o", "json", *options).json]

    assert ids("--queue", "mail") == ["3", "2", "1"]
    assert ids("--action", "shop.ship") == ["4"]
    assert ids("--tag", "red", "--limit", "2") == ["3", "2"]
    assert ids("--tag", "red", "--limit", "2", "--before", "2") == ["1"]
    assert ids("--queue", "nowhere") == []


def test_a_row_has_the_fields_of_the_contract(holdfast, seed):
    seed(one_of_each)
    (row,) = holdfast("task", "list", "--state", "retrying", "-o", "json").json
    assert row["next_retry_at"] is not None
    assert (row["action"], row["queue"], row["attempt"], row["max_attempts"]) == ("shop.charge", "mail", 1, 4)
    assert row["error"] == "DAG_TASK_EXECUTION_EXCEPTION: connection reset by peer"


def test_a_piped_list_is_tab_separated_and_a_table_is_not(holdfast, seed):
    seed(one_of_each)
    lines = holdfast("task", "list", "--state", "failed").out.splitlines()
    assert lines[0].split("\t")[1:4] == ["failed", "shop.charge", "mail"]
    table = holdfast("task", "list", "-o", "table").out
    assert table.splitlines()[0].split()[:3] == ["TASK", "STATE", "ACTION"]
    assert "✕ failed" in table and "\t" not in table and "\x1b" not in table


def test_text_of_users_cannot_command_the_terminal(holdfast, seed):
    async def prepare(harness):
        lease = await a_running_task(harness, max_retries=0)
        from holdfast.core.tasks.outcome import Failed
        from holdfast.testing.factories import a_failure

        await harness.settle(lease, Failed(a_failure("\x1b[31m[bold]red[/bold]\ttab\nline")))

    seed(prepare)
    for form in ("table", "plain"):
        out = holdfast("task", "list", "-o", form, "--color").out
        assert "\x1b[31m[bold]" not in out and "[bold]red[/bold] tab line" in out
    assert "\x1b[31m" not in holdfast("task", "why", "1", "-o", "table").out
    assert "\x1b[31m" not in holdfast("task", "show", "1", "-o", "table").out


def test_a_list_that_cannot_be_is_a_usage_error(holdfast):
    for options, text in ((("--state", "dead"), "is not a state"), (("--limit", "0"), "must be from 1")):
        ran = holdfast("task", "list", *options)
        assert (ran.code, text in ran.err) == (2, True)


def test_show_has_input_output_and_attempts(holdfast, seed):
    task_id = seed(lambda d: a_completed_task(d, input={"n": 9007199254740993}, output=b'{"big":9007199254740993}'))
    view = holdfast("task", "show", task_id, "-o", "json").json
    assert (view["state"], view["input"], view["output"]) == ("completed", {"n": 2**53 + 1}, {"big": 2**53 + 1})
    assert [(one["attempt"], one["state"]) for one in view["attempts"]] == [(1, "completed")]
    assert "attempt 1 completed" in holdfast("task", "show", task_id, "-o", "table").out


def test_show_tells_every_state(holdfast, seed):
    for state, task_id in seed(one_of_each).items():
        assert holdfast("task", "show", task_id, "-o", "json").json["state"] == state
        assert state in holdfast("task", "show", task_id).out


def test_why_prints_the_headline_and_in_a_table_what_to_do(holdfast, seed):
    task_id = seed(declare_nothing_but_a_task)
    assert holdfast("task", "why", task_id).out.startswith("Waiting for a worker: no live worker runs shop.charge")
    assert "→ holdfast work APP --queues default" in holdfast("task", "why", task_id, "-o", "table").out
    found = holdfast("task", "why", task_id, "-o", "json").json
    assert (found["code"], found["state"], found["checks"][1]["ok"]) == ("no_worker", "queued", True)


def test_an_unknown_task_is_not_found(holdfast):
    for verb in ("show", "why", "watch", "wait", "logs", "retry", "cancel"):
        for task_id in ("999", "nonsense", "99999999999999999999"):
            ran = holdfast("task", verb, task_id)
            assert (ran.code, ran.out) == (3, ""), (verb, task_id)
            assert "error: There is no task" in ran.err


def test_an_error_in_json_is_json_on_stderr(holdfast):
    import json

    ran = holdfast("task", "show", "999", "-o", "json")
    assert (ran.code, ran.out, json.loads(ran.err)["error"]["code"]) == (3, "", "task_not_found")


def test_retry_queues_a_failed_task_again(holdfast, seed):
    ids = seed(one_of_each)
    assert holdfast("task", "retry", ids["retrying"], "--reason", "now", "-o", "json").json == {
        "task_id": ids["retrying"],
        "state": "queued",
        "attempt": 2,
    }


def test_retry_of_a_spent_budget_names_the_dead_letter_and_the_command(holdfast, seed):
    ids = seed(one_of_each)
    ran = holdfast("task", "retry", ids["failed"])
    assert (ran.code, "retry budget exhausted [retry_budget_exhausted]" in ran.err) == (5, True)
    assert f"holdfast dead redrive --task {ids['failed']}" in ran.err
    [letter] = holdfast("dead", "list", "--task", ids["failed"], "-o", "json").json
    error = json.loads(holdfast("task", "retry", ids["failed"], "-o", "json").err)["error"]
    assert (error["code"], error["dead_letter_id"]) == ("retry_budget_exhausted", letter["dead_letter_id"])


def test_retrying_what_did_not_fail_is_a_conflict(holdfast, seed):
    ids = seed(one_of_each)
    for state in ("queued", "running", "completed", "canceled"):
        ran = holdfast("task", "retry", ids[state])
        assert (ran.code, "execution_not_retryable" in ran.err) == (5, True)


def test_cancel_says_whether_it_is_over(holdfast, seed):
    ids = seed(one_of_each)
    assert holdfast("task", "cancel", ids["queued"], "--reason", "wrong", "-o", "json").json["state"] == "canceled"
    assert holdfast("task", "cancel", ids["running"]).out == f"{ids['running']}\tcanceling\n"
    assert "Canceled" in holdfast("task", "why", ids["queued"]).out
    assert "Stop requested by cli:" in holdfast("task", "why", ids["running"]).out


def test_canceling_what_is_over_is_a_conflict(holdfast, seed):
    ids = seed(one_of_each)
    for state in ("completed", "failed", "canceled"):
        ran = holdfast("task", "cancel", ids[state])
        assert (ran.code, f"is already {state}" in ran.err) == (5, True)


def test_of_several_each_is_canceled_or_told_why_not(holdfast, seed):
    ids = seed(one_of_each)
    asked = [ids["queued"], ids["completed"], "999", ids["running"]]
    ran = holdfast("task", "cancel", *asked, "--yes")
    assert ran.out == f"{ids['queued']}\tcanceled\n{ids['running']}\tcanceling\n"
    assert (ran.code, "is already completed" in ran.err, "task_not_found" in ran.err) == (5, True, True)
    again = holdfast("task", "cancel", *asked, "--yes", "-o", "json")
    assert [one["task_id"] for one in again.json] == asked and "error" in again.json[1]


def test_canceling_several_needs_yes_without_a_terminal(holdfast, seed):
    async def prepare(harness):
        return [task.task_id for task in await harness.enqueue_many(a_task(), [{}] * 3)]

    ids = seed(prepare)
    ran = holdfast("task", "cancel", *ids)
    assert (ran.code, "Repeat the command with --yes" in ran.err) == (2, True)
    assert holdfast("task", "list", "--state", "canceled", "-o", "json").json == []
    assert len(holdfast("task", "cancel", *ids, "--yes", "-o", "json").json) == 3


def test_wait_tells_the_outcome_by_its_exit_code(holdfast, seed):
    ids = seed(one_of_each)
    assert holdfast("task", "wait", ids["completed"]).code == 0
    assert holdfast("task", "wait", ids["failed"]).code == 1
    assert holdfast("task", "wait", ids["canceled"]).code == 1
    ran = holdfast("task", "wait", ids["queued"], "--timeout", "100ms")
    assert (ran.code, "has not ended after 0.1 s" in ran.err) == (6, True)


def test_wait_for_several_is_zero_only_if_all_completed(holdfast, seed):
    ids = seed(one_of_each)
    assert holdfast("task", "wait", ids["completed"], ids["failed"]).code == 1
    ran = holdfast("task", "wait", ids["completed"], ids["queued"], "--timeout", "1s", "-o", "json")
    assert (ran.code, [one["state"] for one in ran.json]) == (6, ["completed", "waiting"])
    assert holdfast("task", "wait", ids["completed"], "999").code == 3


def test_wait_and_watch_print_the_output(holdfast, seed):
    task_id = seed(lambda d: a_completed_task(d, output=b'{"charged":5}'))
    assert holdfast("task", "wait", task_id).out == '{"charged":5}\n'
    assert holdfast("task", "watch", task_id).out == '{"charged":5}\n'
    body = {"task_id": task_id, "state": "completed", "output": {"charged": 5}, "error": None}
    assert holdfast("task", "wait", task_id, "-o", "json").json == body


def test_watch_exits_with_the_outcome(holdfast, seed):
    ids = seed(one_of_each)
    ran = holdfast("task", "watch", ids["failed"])
    assert (ran.code, ran.out, "Failed for good" in ran.err) == (1, "failed\n", True)
    ran = holdfast("task", "watch", ids["running"], "--timeout", "500ms")
    assert (ran.code, "attempt 1 on first" in ran.err) == (6, True)


def test_logs_show_what_attempts_said(holdfast, seed):
    async def prepare(harness):
        lease = await a_running_task(harness)
        notes = ['{"message": "hello", "n": 1}', '{"done": 1, "total": 4, "message": "pages"}']
        ids = [int(lease.task_id)] * 2
        await harness.engine.database.fetch(
            sql("add_notes"), ids, [1, 1], [lease.token] * 2, ["log", "progress"], notes
        )
        await harness.settle(lease, Completed(b"1"))
        return lease.task_id

    task_id = seed(prepare)
    lines = holdfast("task", "logs", task_id, "--follow").out.splitlines()
    assert [line.split("\t")[1:] for line in lines] == [["#1", "hello  n=1"], ["#1", "1/4 pages"]]
    assert [note["kind"] for note in holdfast("task", "logs", task_id, "-o", "json").json] == ["log", "progress"]
    assert holdfast("task", "logs", task_id, "--attempt", "2").out == ""


def test_whatever_a_worker_says_of_its_progress_is_shown(holdfast, seed):
    async def prepare(harness):
        lease = await a_running_task(harness)
        said = ['{"done": "3"}', '{"message": ["a"], "pages": 2}', '{"done": null, "total": {}}']
        ids, tokens = [int(lease.task_id)] * 3, [lease.token] * 3
        await harness.engine.database.fetch(sql("add_notes"), ids, [1] * 3, tokens, ["progress"] * 3, said)
        return lease.task_id

    task_id = seed(prepare)
    lines = holdfast("task", "logs", task_id).out.splitlines()
    assert [line.split("\t")[2] for line in lines] == ["3/1", "['a']  pages=2", ""]
    assert holdfast("task", "why", task_id).code == 0


def test_a_task_without_logs_says_so(holdfast, seed):
    task_id = seed(a_completed_task)
    assert (holdfast("task", "logs", task_id).out, holdfast("task", "logs", task_id, "-o", "json").json) == ("", [])
    assert "logged nothing" in holdfast("task", "logs", task_id).err


def test_a_delayed_task_is_shown_and_found_as_delayed(holdfast, seed):
    async def prepare(harness):
        delayed = await harness.enqueue(a_delayed_task(300))
        await harness.enqueue(a_task())
        return delayed.task_id

    task_id = seed(prepare)
    assert "◷ delayed" in holdfast("task", "list", "-o", "table").out
    assert len(holdfast("task", "list", "--state", "queued", "-o", "json").json) == 2
    (row,) = holdfast("task", "list", "--state", "delayed", "-o", "json").json
    assert (row["task_id"], row["state"]) == (task_id, "queued")


@pytest.mark.slow("it starts programs; test_show_tells_every_state is fast")
def test_a_copy_is_a_new_task_that_names_its_original(holdfast, seed):
    """Re-running with a changed input makes a new task; the original stays what it is, whatever its state."""
    ids = seed(one_of_each)
    before = holdfast("task", "show", ids["failed"], "-o", "json").json
    copied = holdfast("task", "submit", "--copy-of", ids["failed"], "--input", '{"n": 2}', "--tag", "again").out.strip()
    shown = holdfast("task", "show", copied, "-o", "json").json
    assert shown["original_task_id"] == ids["failed"] and shown["state"] == "queued"
    assert shown["input"] == {**before["input"], "n": 2} and shown["tags"] == ["again"]
    assert (shown["action"], shown["queue"], shown["max_attempts"]) == tuple(
        before[name] for name in ("action", "queue", "max_attempts")
    )
    assert f"copy of\t{ids['failed']}" in holdfast("task", "show", copied).out
    assert f"copies\t{copied}\n" in holdfast("task", "show", ids["failed"]).out
    assert holdfast("task", "show", ids["failed"], "-o", "json").json["copies"] == [copied]
    assert holdfast("task", "show", ids["failed"], "-o", "json").json["attempts"] == before["attempts"]
    once, again = (holdfast("task", "submit", "--copy-of", ids["completed"], "--key", "k").out for _ in range(2))
    assert once == again
    assert holdfast("task", "show", once.strip(), "-o", "json").json["original_task_id"] == ids["completed"]


def test_a_copy_that_cannot_be_is_refused(holdfast, seed):
    assert holdfast("task", "submit", "--copy-of", "999").code == 3
    assert holdfast("task", "submit").code == 2
    assert holdfast("task", "submit", "shop.add", "--copy-of", "999").code == 2
