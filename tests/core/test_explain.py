"""Every position of a task has a true sentence."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.core.explain.evidence import (
    FailureFacts,
    Position,
    QueueFacts,
    TaskFacts,
    TenantFacts,
    WorkerFacts,
    WorkersFacts,
)
from holdfast.core.explain.task import Explanation, explain

AT = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return AT - timedelta(seconds=seconds)


def a_worker(**changes) -> WorkerFacts:
    return replace(WorkerFacts(name="web-1:77", state="active", beat_at=ago(1)), **changes)


def a_failure(**changes) -> FailureFacts:
    failure = FailureFacts(
        attempt=1,
        state="failed",
        code="DAG_TASK_EXECUTION_EXCEPTION",
        type="builtins.ConnectionError",
        message="connection refused.",
        reason="connection_error",
        rule="exception ConnectionError",
        sentence="Retry 1 of 3 in 1.0 s: connection_error (exception ConnectionError).",
        ended_at=ago(4),
    )
    return replace(failure, **changes)


def a_task(position: Position = Position.QUEUED, **changes) -> TaskFacts:
    task = TaskFacts(
        task_id="7",
        action="shop.send",
        position=position,
        at=AT,
        created_at=ago(60),
        queue=QueueFacts(name="mail"),
        crew=WorkersFacts(able=1, slots=4, busy=1),
    )
    return replace(task, **changes)


def a_running_task(**changes) -> TaskFacts:
    return a_task(
        Position.RUNNING,
        **{
            "attempt": 1,
            "worker": a_worker(),
            "started_at": ago(12),
            "lease_expires_at": ago(-8),
            **changes,
        },
    )


NO_CREW = WorkersFacts()
QUEUED = [
    (a_task(created_at=ago(0.5)), "ready", "Queued 500 ms ago; a worker should claim it within moments."),
    (a_task(), "ready", "Ready: nothing holds it back, first in line; a worker claims it next."),
    (
        a_task(ahead=1000, ahead_is_more=True),
        "ready",
        "Ready: nothing holds it back, 1000+ tasks of shop.send ahead; a worker claims it next.",
    ),
    (
        a_task(queue=QueueFacts(name="mail", paused_at=ago(120), paused_by="anna", paused_reason="smtp is down")),
        "queue_paused",
        "Held back: anna paused queue mail 2m 00s ago: smtp is down.",
    ),
    (
        a_task(queue=QueueFacts(name="mail", paused_at=ago(1), paused_by="anna")),
        "queue_paused",
        "Held back: anna paused queue mail 1.0 s ago without giving a reason.",
    ),
    (
        a_task(crew=NO_CREW),
        "no_worker",
        "Waiting for a worker: no live worker runs shop.send from queue mail (no worker ever declared both).",
    ),
    (
        a_task(crew=WorkersFacts(last=a_worker(state="lost", ended_at=ago(780), version="1.4.2"))),
        "no_worker",
        "Waiting for a worker: no live worker runs shop.send from queue mail "
        "(the last one, web-1:77 (version 1.4.2), was lost 13m 00s ago).",
    ),
    (
        a_task(crew=WorkersFacts(last=a_worker(state="gone", ended_at=ago(5)))),
        "no_worker",
        "Waiting for a worker: no live worker runs shop.send from queue mail (the last one, web-1:77, left 5.0 s ago).",
    ),
    (
        a_task(crew=WorkersFacts(last=a_worker(state="draining"))),
        "no_worker",
        "Waiting for a worker: no live worker runs shop.send from queue mail (the last one, web-1:77, is draining).",
    ),
    (
        a_task(crew=WorkersFacts(last=a_worker(beat_at=ago(40)))),
        "no_worker",
        "Waiting for a worker: no live worker runs shop.send from queue mail "
        "(the last one, web-1:77, last sent a heartbeat 40.0 s ago).",
    ),
    (
        a_task(crew=WorkersFacts(elsewhere=a_worker(queues=("a", "b")), last=a_worker(state="gone"))),
        "no_worker",
        "Waiting for a worker: no live worker runs shop.send from queue mail "
        "(web-1:77 has the action but serves only a, b).",
    ),
    (
        a_task(queue=QueueFacts(name="mail", max_running=3, running=3), ahead=1),
        "limit_reached",
        "Waiting for room: queue mail is at its limit, 3/3 running, 1 task of shop.send ahead.",
    ),
    (
        a_task(tenant=TenantFacts(name="acme", max_running=5, running=5), ahead=1),
        "tenant_limit_reached",
        "Waiting for room: tenant acme is at its limit, 5/5 running in all its queues, 1 task of shop.send ahead.",
    ),
    (
        a_task(queue=QueueFacts(name="mail", starts_per_second=0.5, starts_room=0)),
        "rate_limited",
        "Waiting its turn: queue mail is limited to 0.5 starts per second, first in line.",
    ),
    (
        a_task(crew=WorkersFacts(able=2, slots=8, busy=8), ahead=41),
        "slots_full",
        "Waiting for a free slot: 8/8 slots busy on 2 workers, 41 tasks of shop.send ahead.",
    ),
]
DELAYED = [
    (
        a_task(Position.DELAYED, due_at=ago(-300)),
        "scheduled_for",
        "Not due yet: it becomes due in 5m 00s, at 2026-11-15 12:05:00 UTC.",
    ),
    (a_task(Position.DELAYED, due_at=ago(0.2)), "scheduled_for", "Queued: it is due now."),
    (
        a_task(Position.DELAYED, due_at=ago(90)),
        "loops_missing",
        "It was due 1m 30s ago and nothing acted on it: no server seems to run the maintenance loops.",
    ),
    (
        a_task(Position.RESERVED, attempt=1, started_at=ago(3), lease_expires_at=ago(-117)),
        "reserved",
        "Reserved for attempt 1: a worker was launched and has not attached yet; it has 1m 57s left to do so.",
    ),
    (
        a_task(Position.RESERVED, attempt=1, started_at=ago(121), lease_expires_at=ago(1)),
        "reserved",
        "Reserved for attempt 1: a worker was launched and has not attached yet; its time is up.",
    ),
    (
        a_task(Position.RESERVED, attempt=1, started_at=ago(180), lease_expires_at=ago(60)),
        "loops_missing",
        "Its launched worker should have attached 1m 00s ago and nothing acted on it: no server seems to run "
        "the maintenance loops.",
    ),
]
RUNNING = [
    (a_running_task(), "leased_healthy", "Running for 12.0 s: attempt 1 on web-1:77."),
    (
        a_running_task(progress="3/10 pages"),
        "leased_healthy",
        "Running for 12.0 s, 3/10 pages: attempt 1 on web-1:77.",
    ),
    (
        a_running_task(worker=a_worker(state="draining")),
        "worker_draining",
        "Running for 12.0 s: attempt 1 on web-1:77, which is draining and finishes it first.",
    ),
    (
        a_running_task(cancel_at=ago(-9), actor="anna"),
        "cancel_requested",
        "Stop requested by anna: attempt 1 on web-1:77 has not ended yet; in 9.0 s it is stopped by force.",
    ),
    (
        a_running_task(cancel_at=ago(1)),
        "cancel_requested",
        "Stop requested: attempt 1 on web-1:77 has not ended yet; it is being stopped by force.",
    ),
    (
        a_running_task(worker=a_worker(beat_at=ago(7)), lease_expires_at=ago(-3)),
        "heartbeat_late",
        "Attempt 1 on web-1:77 last sent a heartbeat 7.0 s ago; without another within 3.0 s, it counts as lost.",
    ),
    (
        a_running_task(worker=a_worker(beat_at=ago(60)), started_at=ago(1), lease_expires_at=ago(-9)),
        "leased_healthy",
        "Running for 1.0 s: attempt 1 on web-1:77.",
    ),
    (
        a_running_task(lease_expires_at=ago(0.5)),
        "lease_expired",
        "Attempt 1 on web-1:77 lost its lease 500 ms ago; it is about to be reaped.",
    ),
    (
        a_running_task(lease_expires_at=ago(30)),
        "loops_missing",
        "Its lease on web-1:77 expired 30.0 s ago and nothing acted on it: no server seems to run the "
        "maintenance loops.",
    ),
    (a_running_task(worker=None), "leased_healthy", "Running for 12.0 s: attempt 1 on an unknown worker."),
]
AFTER = [
    (
        a_task(Position.RETRYING, attempt=1, retries=1, due_at=ago(-8.2), failure=a_failure()),
        "backoff",
        "Attempt 1 failed: ConnectionError: connection refused; retry 1 of 3 follows in 8.2 s.",
    ),
    (
        a_task(
            Position.RETRYING,
            attempt=2,
            losses=2,
            due_at=ago(0.1),
            failure=a_failure(state="lost", type="", code="LOST", message="no heartbeat"),
        ),
        "backoff",
        "Attempt 2 was lost: LOST: no heartbeat; retry 2 of 3 after a loss follows now.",
    ),
    (
        a_task(Position.RETRYING, attempt=1, due_at=ago(9), failure=a_failure()),
        "loops_missing",
        "Its retry was due 9.0 s ago and nothing acted on it: no server seems to run the maintenance loops.",
    ),
    (
        a_task(
            Position.FAILED,
            attempt=1,
            ended_at=ago(3),
            failure=a_failure(
                type="builtins.ValueError",
                message="no such order",
                reason="unclassified",
                sentence="Stopped: unclassified is not retriable (nothing matched).",
            ),
        ),
        "non_retryable",
        "Failed for good after 1 attempt: ValueError: no such order. "
        "Stopped: unclassified is not retriable (nothing matched).",
    ),
    (
        a_task(
            Position.FAILED,
            attempt=4,
            ended_at=ago(3),
            failure=a_failure(
                state="timed_out",
                type="",
                code="DAG_TASK_EXECUTION_TIMEOUT",
                message="",
                reason="retries_exhausted",
                sentence="Stopped: 3 of 3 retries spent; the last failure was execution_timeout.",
            ),
        ),
        "attempts_exhausted",
        "Failed for good after 4 attempts: DAG_TASK_EXECUTION_TIMEOUT. "
        "Stopped: 3 of 3 retries spent; the last failure was execution_timeout.",
    ),
    (
        a_task(Position.FAILED, attempt=2, ended_at=ago(3)),
        "failed",
        "Failed for good after 2 attempts; its attempts are no longer on record.",
    ),
    (
        a_task(Position.CANCELED, ended_at=ago(60), actor="anna", reason="wrong day"),
        "canceled",
        "Canceled 1m 00s ago by anna before it started: wrong day.",
    ),
    (
        a_task(Position.CANCELED, attempt=1, ended_at=ago(60)),
        "canceled",
        "Canceled 1m 00s ago after 1 attempt, without a reason.",
    ),
    (
        a_task(Position.COMPLETED, attempt=2, started_at=ago(64), ended_at=ago(60), output_bytes=34),
        "completed",
        "Completed 1m 00s ago in 4.0 s, at attempt 2.",
    ),
]


@pytest.mark.parametrize(("facts", "code", "headline"), QUEUED + DELAYED + RUNNING + AFTER)
def test_a_position_has_its_sentence(facts, code, headline):
    explanation = explain(facts)
    assert explanation.headline == headline
    assert str(explanation) == headline
    assert explanation.code == code


@pytest.mark.parametrize("position", list(Position))
def test_every_position_is_explained(position):
    facts = a_task(
        position,
        attempt=1,
        due_at=ago(-1),
        started_at=ago(2),
        ended_at=ago(1),
        lease_expires_at=ago(-1),
        failure=a_failure(),
    )
    assert isinstance(explain(facts), Explanation)


def test_the_first_condition_not_met_is_the_headline_and_all_are_listed():
    queue = QueueFacts(name="mail", paused_at=ago(1), paused_by="anna", max_running=1, running=1)
    explanation = explain(a_task(queue=queue, crew=NO_CREW))
    assert explanation.code == "queue_paused"
    assert [check.ok for check in explanation.checks] == [True, False, False, False, True]


@pytest.mark.parametrize(
    ("facts", "move"),
    [
        (a_task(crew=NO_CREW), "holdfast work APP --queues mail"),
        (a_task(queue=QueueFacts(name="mail", paused_at=ago(1), paused_by="a")), "holdfast queue resume mail"),
        (a_task(queue=QueueFacts(name="mail", max_running=3, running=3)), "holdfast queue limit mail --running 6"),
        (
            a_task(tenant=TenantFacts(name="acme", max_running=5, running=5)),
            "holdfast tenant limit acme --max-running 10",
        ),
        (a_task(Position.DELAYED, due_at=ago(90)), "holdfast server"),
        (a_running_task(), "holdfast task cancel 7"),
        (a_running_task(cancel_at=ago(-9)), "holdfast task watch 7"),
        (a_task(Position.RETRYING, due_at=ago(-9), failure=a_failure()), "holdfast task retry 7"),
    ],
)
def test_what_would_move_it_can_be_typed(facts, move):
    assert move in explain(facts).moves


def test_a_running_attempt_shows_its_vital_signs():
    facts = a_running_task(timeout_seconds=20.0, progress="3/10 pages", failure=a_failure())
    assert explain(facts).evidence == (
        "web-1:77 last sent a heartbeat 1.0 s ago",
        "lease expires in 8.0 s",
        "timeout in 8.0 s of 20.0 s",
        "progress: 3/10 pages",
        "attempt 1, 4.0 s ago, failed: ConnectionError: connection refused",
        "Retry 1 of 3 in 1.0 s: connection_error (exception ConnectionError).",
    )


def test_a_long_message_is_cut_and_put_on_one_line():
    failure = a_failure(message="first\nsecond " + "x" * 5000)
    headline = explain(a_task(Position.RETRYING, due_at=ago(-1), failure=failure)).headline
    assert "first second xxx" in headline
    assert len(headline) < 400
