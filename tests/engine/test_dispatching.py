"""What an operator asked to run again, and the database failed: nothing changed, and that is said where it is known."""

from __future__ import annotations

import pytest
from tests.core.flows import a_flow
from tests.flow.steps import finish

from holdfast.engine.lifecycle.dead_letters.commands import redrive
from holdfast.engine.lifecycle.dead_letters.reinject import reinject_once
from holdfast.errors import DispatchFailed, Unavailable
from holdfast.operations.http_errors import error_of
from holdfast.testing.factories import a_failed_task

REFUSING = """
create function holdfast.refuse() returns trigger language plpgsql as
  $$ begin raise exception 'not while the auditors are here'; end $$;
create {kind} trigger refuse after insert on holdfast.live {when} for each row execute function holdfast.refuse();
"""
AT_ONCE = REFUSING.format(kind="", when="")
AT_COMMIT = REFUSING.format(kind="constraint", when="initially deferred")


class Cut:
    """Breaks the connection before or after one statement."""

    def __init__(self, at: str, *, is_before: bool) -> None:
        self._at = at
        self._is_before = is_before

    def before(self, statement: str) -> None:
        if self._is_before and self._at in statement:
            raise ConnectionResetError("cut")

    def after(self, statement: str) -> None:
        if not self._is_before and self._at in statement:
            raise ConnectionResetError("cut")


async def refuse(harness, script=AT_ONCE):
    async with harness.engine.database.session() as session:
        await session.execute(script)


async def a_task_to_redrive(harness):
    task_id = await a_failed_task(harness)
    return task_id, lambda: redrive(harness.engine, 1, int(task_id), actor="anna", reason="fixed")


@pytest.mark.parametrize("script", [AT_ONCE, AT_COMMIT], ids=["at once", "at the commit"])
async def test_a_redrive_that_the_database_refuses_changed_nothing(harness, script):
    task_id, again = await a_task_to_redrive(harness)
    await refuse(harness, script)
    with pytest.raises(DispatchFailed, match="nothing changed: not while the auditors are here") as failed:
        await again()
    assert (failed.value.code, failed.value.category) == ("DAG_DISPATCH_REINJECT_ENQUEUE_FAILED", "dispatch")
    assert (await harness.task(task_id)).state == "failed"


async def test_a_retry_of_a_run_that_the_database_refuses_changed_nothing(harness):
    run = await harness.runs.start(a_flow("a>b"))
    await finish(harness, fail=[0])
    await refuse(harness)
    with pytest.raises(DispatchFailed) as failed:
        await harness.runs.retry(run)
    assert failed.value.code == "DAG_DISPATCH_ENQUEUE_RETRY_FAILED"
    assert await harness.runs.nodes(run) == {"a": "failed", "b": "upstream_failed"}


async def test_a_reinjection_that_the_database_refuses_changed_nothing_and_leaves_no_lease(harness):
    task_id = await a_failed_task(harness)
    await refuse(harness)
    with pytest.raises(DispatchFailed) as failed:
        await reinject_once(harness.engine, "consumer", 60.0)
    assert failed.value.code == "DAG_DISPATCH_REINJECT_ENQUEUE_FAILED"
    assert (await harness.task(task_id)).state == "failed"
    assert not await harness.engine.database.fetch("select from holdfast.dead_lease")


async def test_a_connection_that_breaks_before_the_commit_changed_nothing(harness):
    task_id, again = await a_task_to_redrive(harness)
    harness.engine.database.tap = Cut("commit", is_before=True)
    with pytest.raises(Unavailable) as failed:
        await again()
    harness.engine.database.tap = Cut("audit", is_before=True)
    with pytest.raises(DispatchFailed) as known:
        await again()
    harness.engine.database.tap = None
    # Whoever waits for a commit cannot tell whether it was sent.
    assert (failed.value.code, known.value.code) == ("outcome_unknown", "DAG_DISPATCH_REINJECT_ENQUEUE_FAILED")
    assert (await harness.task(task_id)).state == "failed"


async def test_a_commit_whose_answer_is_lost_stays_an_unknown_outcome(harness):
    task_id, again = await a_task_to_redrive(harness)
    harness.engine.database.tap = Cut("commit", is_before=False)
    with pytest.raises(Unavailable) as failed:
        await again()
    harness.engine.database.tap = None
    assert (type(failed.value), failed.value.code) == (Unavailable, "outcome_unknown")
    assert (await harness.task(task_id)).state == "queued"


def test_over_http_it_is_the_same_error():
    body = b'{"code": "DAG_DISPATCH_ENQUEUE_RETRY_FAILED", "category": "dispatch", "detail": "x"}'
    assert type(error_of(503, body)) is DispatchFailed
