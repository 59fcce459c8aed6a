"""What a worker logs: each failed attempt with its class and what follows, and an outage twice."""

from __future__ import annotations

import logging
import re

import pytest
from asyncpg import LockNotAvailableError
from tests.waiting import eventually

import holdfast as hf
from holdfast.core.tasks.failure import Failure
from holdfast.core.tasks.outcome import Failed
from holdfast.core.tasks.policy import RetryPolicy
from holdfast.engine.failure_log import LINES_MAX, WINDOW_SECONDS, FailureLog
from holdfast.engine.leases import Report
from holdfast.store.outage import Outage


@pytest.fixture(autouse=True)
def _loggers_at_their_defaults(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Undo what earlier tests in this process changed in logging.

    `caplog.set_level` goes through `Logger.setLevel`, which also clears the cached answers of `isEnabledFor`. Assigning
    the attribute `level` would leave a cached "not enabled" in place.
    """
    for name in ("holdfast", "holdfast.attempts", "holdfast.worker"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
        monkeypatch.setattr(logging.getLogger(name), "disabled", False)
        caplog.set_level(logging.INFO, logger=name)


def lines(caplog, logger: str) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == logger]


@pytest.mark.representative(one_in=2)
async def test_a_failed_attempt_is_one_line_with_its_class_and_what_follows(running_worker, client_of, caplog, way):
    app = hf.App("local")

    @app.action(max_retries=1, retry={"base_backoff_secs": 0.05})
    async def flaky(ctx: hf.Context) -> str:
        if ctx.attempt == 1:
            raise ConnectionResetError("the mail server hung up")
        return "sent"

    @app.action(max_retries=3)
    async def odd(why: str) -> None:
        raise RuntimeError(why)

    async with client_of(app) as client, running_worker(app=app):
        first = await client.enqueue("local.flaky")
        assert await first.result(20) == "sent"
        for why in ("twice", "again"):
            await (await client.enqueue("local.odd", why=why)).wait(20)
    told = [one for one in lines(caplog, "holdfast.attempts") if "the server decides" not in one]
    retried, stopped, again = told
    assert retried.startswith(f"task {first.task_id} (local.flaky) attempt 1 failed: ConnectionResetError: the mail")
    assert re.search(r"\[connection_error\]; retry 1 of 1 in \S+ ?m?s, at \d\d:\d\d:\d\d$", retried), retried
    assert stopped.endswith("[unclassified]; unclassified, not retried; add retry_on=… to the action")
    assert again.endswith("RuntimeError: again [unclassified]; unclassified, not retried")
    if way == "http":
        theirs = [one for one in lines(caplog, "holdfast.attempts") if "the server decides what follows" in one]
        assert len(theirs) == 3, "the worker has the failures in its own log too"


async def test_the_retry_is_due_when_the_log_said(running_worker, client_of, caplog):
    app = hf.App("local")

    @app.action(max_retries=1, retry={"base_backoff_secs": 3600, "jitter_factor": 0.5})
    async def flaky() -> None:
        raise ConnectionResetError("gone")

    async with client_of(app) as client, running_worker(app=app):
        task = await client.enqueue("local.flaky")

        async def retry_at():
            return await client.engine.database.fetchval(
                "select due_at from holdfast.live where task_id = $1 and state = 'w'", int(task.task_id)
            )

        due = await eventually(retry_at)
    [told] = [one for one in lines(caplog, "holdfast.attempts") if "the server decides" not in one]
    said = re.search(r"at (\d\d):(\d\d):\d\d$", told)
    assert said is not None
    local = due.astimezone()
    minutes = abs((int(said[1]) * 60 + int(said[2])) - (local.hour * 60 + local.minute))
    assert min(minutes, 24 * 60 - minutes) <= 1, (told, due)


def test_a_storm_of_failures_is_counted(caplog):
    now = 0.0
    told = FailureLog(clock=lambda: now)
    report = Report(1, 1, None, 1, 0, 0, Failed(Failure(code="X", message="no", type="ValueError")))
    for _ in range(LINES_MAX + 7):
        told.tell("shop.charge", report, RetryPolicy())
    assert len(lines(caplog, "holdfast.attempts")) == LINES_MAX
    now = WINDOW_SECONDS + 1
    told.tell("shop.charge", report, RetryPolicy())
    assert lines(caplog, "holdfast.attempts")[LINES_MAX].startswith("7 more attempts failed within ")


def test_an_outage_is_told_when_it_begins_and_when_it_ends(caplog):
    now = 100.0
    outage = Outage("the database", clock=lambda: now)
    outage.answered("exchange")
    for part in ("exchange", "heartbeat", "exchange", "reap"):
        outage.failed(part, ConnectionRefusedError("nobody listens"))
    now = 104.6
    for part in ("reap", "exchange", "heartbeat"):
        outage.answered(part)
    assert lines(caplog, "holdfast.outage") == [
        "the database does not answer (exchange): nobody listens; trying again",
        "the database answers again (reap) after 4.6 s",
    ]


def test_a_part_that_fails_alone_has_a_line_of_its_own_and_hides_no_outage(caplog):
    outage = Outage("the database", clock=lambda: 0.0)
    for _ in range(3):
        outage.failed("retain", LockNotAvailableError("held"))
        outage.answered("reap")
    outage.failed("reap", ConnectionRefusedError("nobody listens"))
    outage.answered("something that never asked")
    outage.answered("reap")
    outage.answered("retain")
    assert [one.partition(":")[0] for one in lines(caplog, "holdfast.outage")] == [
        "the database refuses (retain)",
        "the database does not answer (reap)",
        "the database answers again (reap) after 0.0 s",
        "the database answers again (retain) after 0.0 s",
    ]
