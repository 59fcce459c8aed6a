"""`holdfast action breaker` and retry quotas by `holdfast queue limit`, against a real database."""

from __future__ import annotations

from holdfast.core.limits.breaker import Breaker
from holdfast.core.limits.quota import Quota
from holdfast.core.tasks.outcome import Failed
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.testing.factories import ACTION, a_failure, a_retrying_task, a_task


async def an_open_breaker(harness):
    await harness.engine.catalog.declare(DEFAULT_TENANT_ID, ACTION, "default", RetryPolicy(), "1")
    await harness.guard(ACTION, breaker=Breaker(attempts_min=2))
    tasks = await harness.enqueue_many(a_task(), [{}] * 3)
    for lease in await harness.claim(2):
        await harness.settle(lease, Failed(a_failure("connection reset", type="ConnectionResetError")))
    return tasks[-1].task_id


async def a_held_back_retry(harness):
    task_id = await a_retrying_task(harness, base_backoff_secs=0.0, queue="mail")
    await harness.reconcile_once()
    return task_id


def test_a_breaker_is_shown(holdfast, seed):
    seed(an_open_breaker)
    view = holdfast("action", "breaker", ACTION, "-o", "json").json
    assert (view["state"], view["attempts"], view["failures"]) == ("open", 2, 2)
    shown = holdfast("action", "breaker", ACTION).out
    assert "opened by\t2 of 2 failed with connection_error (ConnectionResetError)" in shown
    assert "next trial\tin " in shown
    (row,) = holdfast("action", "list", "-o", "json").json
    assert row["breaker"] == "open"
    assert "breaker\topen" in holdfast("action", "show", ACTION).out


def test_why_names_the_breaker(holdfast, seed):
    waiting = seed(an_open_breaker)
    said = holdfast("task", "why", waiting).out
    assert f"breaker of {ACTION} is open since" in said
    assert "after 2 of 2 attempts failed with connection_error (ConnectionResetError); next trial in" in said


def test_a_breaker_is_steered_with_a_reason(holdfast, seed):
    waiting = seed(an_open_breaker)
    assert holdfast("action", "breaker", ACTION, "--close", "--reason", "fixed", "-o", "json").json["state"] == "closed"
    no_reason = holdfast("action", "breaker", ACTION, "--open")
    assert (no_reason.code, "reason_required" in no_reason.err) == (2, True)
    view = holdfast("action", "breaker", ACTION, "--open", "--reason", "bank down", "-o", "json").json
    assert (view["state"], view["trial_at"], view["reason"]) == ("open", None, "bank down")
    assert view["actor"].startswith("cli:")
    assert "opened the breaker of shop.charge" in holdfast("task", "why", waiting).out
    assert holdfast("action", "breaker", ACTION, "--reset", "-o", "json").json["state"] == "half_open"


def test_an_action_without_a_breaker_is_not_found(holdfast):
    ran = holdfast("action", "breaker", "shop.nothing", "--close")
    assert (ran.code, "breaker_not_found" in ran.err) == (3, True)


def test_retries_of_a_queue_are_limited_step_by_step(holdfast, seed):
    seed(a_held_back_retry)
    assert holdfast("queue", "limit", "mail", "--retries", "100/m").out == "mail\tretries 100 per minute\n"
    said = holdfast("queue", "limit", "mail", "--retry-share", "10%").out
    assert said == "mail\tretries 100 per minute, at most 10 % of first attempts per minute\n"
    assert holdfast("queue", "limit", "mail", "--running", "5", "--retry-share", "none").out.startswith(
        "mail\t5 running"
    )
    (row,) = holdfast("queue", "list", "-o", "json").json
    assert row["retry_quota"] == "100 per minute"
    view = holdfast("queue", "limit", "mail", "--retries", "none", "-o", "json").json
    assert (view["retry_quota"], view["max_running"]) == (None, 5)


def test_retries_of_all_queues_together_are_limited(holdfast, seed):
    seed(a_held_back_retry)
    (row,) = holdfast("queue", "limit", "*", "--retries", "7/1h", "--reason", "calm", "-o", "json").json
    assert (row["scope"], row["retries"], row["window_seconds"], row["reason"]) == ("tenant", 7, 3600.0, "calm")
    assert holdfast("queue", "limit", "*", "--retries", "none", "-o", "json").json == []
    assert holdfast("queue", "limit", "*", "--running", "3").code == 2


def test_why_names_the_quota(holdfast, seed):
    seed(a_held_back_retry)
    holdfast("queue", "limit", "mail", "--retries", "1/1m")

    async def two_retries(harness):
        await a_retrying_task(harness, base_backoff_secs=0.0, queue="mail")
        waiting = await a_retrying_task(harness, base_backoff_secs=0.0, queue="mail")
        await harness.reconcile_once()
        return waiting

    said = holdfast("task", "why", seed(two_retries)).out
    assert "retry quota of queue mail (1 per minute) is used up; next slot in" in said


def test_a_bad_quota_is_a_usage_error(holdfast, seed, subtests):
    for options in [("--retries", "many"), ("--retries", "0"), ("--retry-share", "150%")]:
        with subtests.test(options=options):
            seed(a_held_back_retry)
            assert holdfast("queue", "limit", "mail", *options).code == 2


def test_the_class_of_each_failed_attempt_is_shown(holdfast, seed):
    async def spent(harness):
        return await a_retrying_task(harness, max_retries=0)

    task_id = seed(spent)
    (attempt,) = holdfast("task", "show", task_id, "-o", "json").json["attempts"]
    assert (attempt["reason"], attempt["failure_class"]) == ("retries_exhausted", "connection_error")
    assert "Class connection_error." in holdfast("task", "show", task_id, "-o", "table").out


def test_every_quota_is_shown_without_setting_one(holdfast, seed):
    """Those of actions and of all queues together too, which no queue's line can show."""

    async def an_action_with_a_quota(harness):
        await harness.engine.catalog.declare(DEFAULT_TENANT_ID, ACTION, "default", RetryPolicy(), "1")
        await harness.guard(ACTION, quota=Quota(retries=7, window_seconds=60.0))

    seed(an_action_with_a_quota)
    holdfast("queue", "limit", "*", "--retries", "50/m", "--reason", "spare the bank")
    shown = holdfast("queue", "limit", "*", "-o", "json").json
    assert {(row["scope"], row["retries"]) for row in shown} == {("action", 7), ("tenant", 50)}
    assert "spare the bank" in holdfast("queue", "limit", "*").out
