"""`holdfast queue …`, `worker …` and `action …` against a real database."""

from __future__ import annotations

from holdfast.core.tasks.outcome import Completed
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.testing.factories import a_completed_task, a_failed_task, a_running_task, a_task


async def some_work(harness):
    await harness.enqueue_many(a_task(queue="mail"), [{}] * 2)
    for make in (a_running_task, a_completed_task, a_failed_task):
        await make(harness, queue="mail")


def test_empty_lists_are_empty_arrays(holdfast):
    for noun in ("queue", "worker", "action"):
        ran = holdfast(noun, "list", "-o", "json")
        assert (ran.code, ran.out) == (0, "[]\n")
        ran = holdfast(noun, "list")
        assert (ran.code, ran.out, ran.err != "") == (0, "", True)


def test_a_queue_has_the_fields_of_the_contract(holdfast, seed):
    seed(some_work)
    (row,) = holdfast("queue", "list", "-o", "json").json
    wanted = {"name": "mail", "queued": 2, "running": 1, "retrying": 0, "blocked": 0, "completed": 1, "failed": 1}
    assert wanted.items() <= row.items()
    assert (row["paused"], row["partial"]) == (False, [])
    assert holdfast("queue", "list").out.split("\t")[:6] == ["mail", "2", "1", "0", "1", "1"]
    assert holdfast("queue", "list", "-o", "table").out.split()[:4] == ["QUEUE", "QUEUED", "RUNNING", "RETRYING"]


def test_pause_and_resume_tell_who_and_why(holdfast, seed):
    seed(some_work)
    assert holdfast("queue", "pause", "mail", "--reason", "smtp is down").out == "mail\tpaused\n"
    (row,) = holdfast("queue", "list", "-o", "json").json
    assert (row["paused"], row["paused_reason"]) == (True, "smtp is down")
    assert row["paused_by"].startswith("cli:")
    assert holdfast("queue", "pause", "mail").out == "mail\talready paused\n"
    assert holdfast("queue", "resume", "mail", "-o", "json").json == {"name": "mail", "paused": False}
    assert holdfast("queue", "resume", "mail").out == "mail\twas not paused\n"


def test_a_queue_is_drained_once_nothing_of_it_runs(holdfast, seed):
    lease = seed(lambda d: a_running_task(d, queue="mail"))
    ran = holdfast("queue", "drain", "mail", "--reason", "a migration", "--timeout", "10ms")
    assert (ran.code, "1 still run" in ran.err) == (6, True)
    (row,) = holdfast("queue", "list", "-o", "json").json
    assert (row["paused"], row["paused_reason"]) == (True, "a migration")
    seed(lambda d: d.settle(lease, Completed(b"1")))
    assert holdfast("queue", "drain", "mail").out == "mail\tdrained\n"
    assert holdfast("queue", "drain", "mail", "-o", "json").json == {"name": "mail", "paused": True}
    assert holdfast("queue", "drain", "nothing").code == 3


def test_limits_are_set_one_by_one_and_lifted(holdfast, seed):
    seed(some_work)
    assert holdfast("queue", "limit", "mail", "--running", "3").out == "mail\t3 running\n"
    assert holdfast("queue", "limit", "mail", "--per-second", "0.5").out == "mail\t3 running, 0.5/s\n"
    assert holdfast("queue", "limit", "mail", "--running", "none").out == "mail\t0.5/s\n"
    view = holdfast("queue", "limit", "mail", "--per-second", "none", "-o", "json").json
    assert (view["max_running"], view["starts_per_second"]) == (None, None)


def test_two_who_limit_a_queue_at_once_lose_nothing_of_each_other(holdfast_behind, seed):
    seed(some_work)
    other = "update holdfast.queue set max_running = 3 where name = 'mail'"
    assert holdfast_behind(other, "queue", "limit", "mail", "--per-second", "0.5").out == "mail\t3 running, 0.5/s\n"


def test_a_bad_limit_is_a_usage_error(holdfast, seed, subtests):
    for options in [(), ("--running", "0"), ("--running", "many"), ("--running", "1.5"), ("--per-second", "-1")]:
        with subtests.test(options=options):
            seed(some_work)
            assert holdfast("queue", "limit", "mail", *options).code == 2


def test_an_unknown_queue_is_not_found(holdfast, seed, subtests):
    for verb in [("pause",), ("resume",)]:
        with subtests.test(verb=verb):
            seed(some_work)
            ran = holdfast("queue", verb[0], "mial", *verb[1:])
            assert (ran.code, "Did you mean mail?" in ran.err) == (3, True)


def test_workers_are_listed_shown_and_drained(holdfast, seed):
    seed(some_work)
    (row,) = holdfast("worker", "list", "-o", "json").json
    assert (row["name"], row["state"], row["running"], row["queues"]) == ("first", "active", 1, None)
    assert holdfast("worker", "list").out.split("\t")[:4] == [row["worker_id"], "active", "first", "1/100"]
    view = holdfast("worker", "show", row["worker_id"], "-o", "json").json
    assert [task["action"] for task in view["tasks"]] == ["shop.charge"]
    assert "shop.charge" in holdfast("worker", "show", row["worker_id"], "-o", "table").out
    assert holdfast("worker", "drain", row["worker_id"]).out == f"{row['worker_id']}\tdraining\n"
    assert holdfast("worker", "drain", row["worker_id"], "-o", "json").json["state"] == "draining"


def test_a_worker_that_left_is_a_conflict_to_drain_and_only_listed_on_request(holdfast, seed):
    async def leave(harness):
        await harness.worker_id("first")
        await harness.retire("first")

    seed(leave)
    assert holdfast("worker", "list", "-o", "json").json == []
    (row,) = holdfast("worker", "list", "--all", "-o", "json").json
    assert row["state"] == "gone"
    assert holdfast("worker", "drain", row["worker_id"]).code == 5


def test_an_unknown_worker_is_not_found(holdfast, subtests):
    for verb in ["show", "drain"]:
        for worker_id in ["77", "nobody", "99999999999"]:
            with subtests.test(verb=verb, worker_id=worker_id):
                ran = holdfast("worker", verb, worker_id)
                assert (ran.code, "There is no worker" in ran.err) == (3, True)


def test_actions_are_what_workers_declared(holdfast, seed):
    async def declare(harness):
        policy = RetryPolicy(max_retries=7, timeout_seconds=120)
        await harness.engine.catalog.declare(1, "shop.mail", "mail", policy, "1.4.2")

    seed(declare)
    (row,) = holdfast("action", "list", "-o", "json").json
    assert (row["name"], row["queue"], row["max_retries"], row["timeout_seconds"]) == ("shop.mail", "mail", 7, 120)
    assert holdfast("action", "list", "-o", "table").out.splitlines()[1].split()[:5] == [
        "shop.mail",
        "mail",
        "7",
        "2m",
        "00s",
    ]
    assert holdfast("action", "show", "shop.mail", "-o", "json").json["policy"]["max_retries"] == 7
    assert "max_retries\t7" in holdfast("action", "show", "shop.mail").out
    ran = holdfast("action", "show", "shop.mial")
    assert (ran.code, "Did you mean shop.mail?" in ran.err) == (3, True)
