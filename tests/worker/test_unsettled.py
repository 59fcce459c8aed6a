"""Attempts that ended and are not settled yet: their leases are kept, and nobody waits for them."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import asyncpg
import pytest
from tests.datasets.hands import seen

import holdfast as hf
from holdfast.core.tasks.outcome import Completed
from holdfast.engine.engine import Engine
from holdfast.engine.leases import Report, Settled
from holdfast.engine.notifications import NO_NOTIFICATIONS
from holdfast.errors import Unavailable
from holdfast.store import database
from holdfast.store.statements import sql
from holdfast.worker.runtime import dataset_commits
from holdfast.worker.runtime.dataset_commits import AT_ONCE_MAX, ERRORS_MAX
from holdfast.worker.runtime.processor import REPORTS_MAX
from holdfast.worker.runtime.state import WorkerState
from holdfast.worker.transport.database import DatabaseTransport

LEASES = 2
"""How many leases an attempt has to wait for its settling."""
KEPT = """
select bool_and(lease_expires_at > started_at + make_interval(secs => $2)) and count(*) = cardinality($1::bigint[])
from holdfast.live
where task_id = any($1::bigint[]) and state = 'r' and attempt = 1
"""


@pytest.fixture
def app(settings) -> hf.App:
    made = hf.App("local", settings=settings)
    made.dataset("orders", version=1, columns={"order_id": "bigint", "cents": "bigint"}, key=["order_id"])
    made.may_end = {"first": asyncio.Event(), "second": asyncio.Event()}
    made.began = Counter()

    # The row of the first task stays locked past its lease, so the reaper may reach it before its report does.
    @made.action(max_losses=3, max_retries=0)
    async def wait_for(name: str) -> str:
        made.began[name] += 1
        await made.may_end[name].wait()
        return name

    @made.action(max_losses=0, max_retries=0)
    async def plain(n: int) -> int:
        return n

    @made.action(max_losses=0, max_retries=0)
    async def append(ctx: hf.Context, n: int) -> int:
        await ctx.dataset("orders").append([{"order_id": n, "cents": 100}])
        return n

    return made


@pytest.fixture
def are_kept(engine, settings, eventually):
    """Wait until the first attempts of these tasks have outlived their leases."""

    async def wait(*tasks) -> None:
        numbers = [int(task.task_id) for task in tasks]
        seconds = (LEASES + 1) * settings.worker.lease_seconds
        await eventually(lambda: engine.database.fetchval(KEPT, numbers, seconds))

    return wait


@asynccontextmanager
async def locked(engine, statement, *arguments):
    """Somebody else holds what the statement locks."""
    async with engine.database.transaction() as session:
        assert await session.fetch(sql(statement), *arguments)
        yield


@asynccontextmanager
async def somebody_writing(engine):
    """A long commit to the dataset, of somebody else."""
    generation_id = await engine.database.fetchval("select generation_id from holdfast.dataset_generation")
    async with locked(engine, "lock_generations", [generation_id], []):
        yield


async def test_a_report_that_waits_for_another_keeps_its_lease(
    app, engine, client_of, running_worker, are_kept, eventually
):
    async with client_of(app) as client, running_worker(app=app, slots=10) as worker:
        first, second = [await client.enqueue("local.wait_for", name=name) for name in app.may_end]
        await eventually(lambda: len(worker.state.running) == 2)
        async with locked(engine, "lock_tasks", [int(first.task_id)]):
            app.may_end["first"].set()
            await eventually(lambda: any(worker.state._batches_in_exchanges))
            app.may_end["second"].set()
            await are_kept(second)
        assert [await first.result(20), await second.result(20)] == ["first", "second"]
    assert app.began["second"] == 1
    assert not worker.state.unsettled_and_committing()


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; "
    "test_a_report_that_waits_for_another_keeps_its_lease is fast"
)
async def test_what_is_being_settled_keeps_no_beat_waiting(
    app, engine, client_of, running_worker, are_kept, eventually
):
    """Somebody holds its row, as a long transaction that settles it does; the others go on living."""
    async with client_of(app) as client, running_worker(app=app, slots=10) as worker:
        first, second = [await client.enqueue("local.wait_for", name=name) for name in app.may_end]
        await eventually(lambda: len(worker.state.running) == 2)
        async with locked(engine, "lock_tasks", [int(first.task_id)]):
            app.may_end["first"].set()
            await are_kept(second)
        app.may_end["second"].set()
        assert [await first.result(20), await second.result(20)] == ["first", "second"]
    assert app.began["second"] == 1


class TestCommits:
    """Of datasets, which only workers that have the database write to."""

    @pytest.fixture
    def way(self) -> str:
        return "direct"

    async def test_who_waits_to_commit_keeps_its_lease(
        self, app, engine, client_of, running_worker, are_kept, eventually
    ):
        """Some wait for the generation, the others for their turn to."""
        numbers = range(2 * AT_ONCE_MAX)
        async with client_of(app) as client, running_worker(app=app, slots=20, datasets=app.datasets) as worker:
            async with somebody_writing(engine):
                tasks = await client.enqueue_many("local.append", [{"n": n} for n in numbers])
                await eventually(lambda: len(worker.state.commits) == len(tasks))
                await are_kept(*tasks)
            assert [await task.result(20) for task in tasks] == list(numbers)
        assert [row[0] for row in await seen(engine)] == list(numbers)
        assert not worker.state.unsettled_and_committing()

    async def test_a_commit_that_waited_in_vain_is_repeated_and_holds_up_nobody(
        self, app, engine, client_of, running_worker, settings, are_kept, monkeypatch, eventually
    ):
        monkeypatch.setitem(database._SERVER_SETTINGS, "lock_timeout", "100ms")
        async with (
            Engine(engine.database.url, settings) as impatient,
            client_of(app) as client,
            running_worker(app=app, line=DatabaseTransport(impatient), datasets=app.datasets) as worker,
        ):
            async with somebody_writing(engine):
                late = await client.enqueue("local.append", n=1)
                await eventually(lambda: worker.state.commits.unanswered_count > 1)
                for n in range(3):
                    assert await (await client.enqueue("local.plain", n=n)).result(20) == n
                await are_kept(late)
            assert await late.result(20) == 1
        assert await seen(engine) == [(1, 100)]

    async def test_a_worker_that_leaves_stops_repeating(self, app, engine, client_of, running_worker, monkeypatch):
        calls = asyncio.Semaphore(0)

        async def is_away(*_):
            calls.release()
            raise Unavailable("Not now.")

        monkeypatch.setattr(DatabaseTransport, "settle_alone", is_away)
        monkeypatch.setattr("holdfast.worker.runtime.worker.INTERRUPT_SECONDS_MAX", 0.1)
        async with client_of(app) as client, running_worker(app=app, datasets=app.datasets) as worker:
            await client.enqueue("local.append", n=1)
            await asyncio.wait_for(calls.acquire(), 20)
        assert not worker.state.commits and not worker.state.commits._tasks

    async def test_a_processor_says_that_its_commit_is_not_answered_and_goes_on(
        self, app, engine, client_of, monkeypatch
    ):
        monkeypatch.setattr(dataset_commits, "PAUSE_SECONDS_MAX", 0.001)
        monkeypatch.setattr(dataset_commits, "PAUSE_SECONDS_FIRST", 0.001)
        settle_alone, calls = DatabaseTransport.settle_alone, []

        async def is_away(line, report):
            calls.append(report)
            if len(calls) <= REPORTS_MAX:
                raise Unavailable("Not now.")
            return await settle_alone(line, report)

        monkeypatch.setattr(DatabaseTransport, "settle_alone", is_away)
        async with client_of(app) as client, app.processor() as processor:
            task = await client.enqueue("local.append", n=1)
            with pytest.raises(Unavailable):
                await processor.process_once()
            assert not (await processor.process_once()).processed
            assert await task.result(20) == 1


A_REPORT = Report(1, 1, "token", 1, 0, 0, Completed(b"null"))


class ScriptedTransport(DatabaseTransport):
    """Answers each commit to a dataset with the next of these, and then with the last of them for ever."""

    def __init__(self, engine, answers):
        super().__init__(engine)
        self.answers, self.calls = list(answers), 0

    async def settle_alone(self, report):
        self.calls += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def committed(engine, monkeypatch):
    """Commit one report over a transport with these answers; return how many reports were accepted, and the calls."""
    monkeypatch.setattr(dataset_commits, "PAUSE_SECONDS_FIRST", 0.0)

    async def run(*answers):
        transport = ScriptedTransport(engine, answers)
        state = WorkerState(transport, {}, slots=1)
        state.commits.start(A_REPORT)
        async with asyncio.timeout(20):
            while state.commits:
                await state.signal.wait(20)
        return state.accepted_count, transport.calls

    return run


async def test_what_is_not_answered_is_repeated_until_it_is(committed):
    settled = Settled(1, [], NO_NOTIFICATIONS)
    trouble = [Unavailable("Not now."), TimeoutError(), asyncpg.LockNotAvailableError("busy")] * ERRORS_MAX
    assert await committed(*trouble, settled) == (1, len(trouble) + 1)


@pytest.mark.parametrize(
    ("error", "tries"),
    [(asyncpg.UndefinedTableError("gone"), ERRORS_MAX), (RuntimeError("a fault of ours"), 1)],
    ids=["database", "fault"],
)
async def test_what_time_does_not_mend_is_left_to_the_reaper(committed, error, tries):
    assert await committed(error) == (0, tries)
