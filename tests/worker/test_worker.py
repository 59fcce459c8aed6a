"""One worker in this process: what it claims, when it drains or leaves, what it keeps of what attempts said."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import asyncpg
import pytest

import holdfast as hf
from holdfast.engine.lifecycle.tasks.claim import WorkerIdentity, held_by
from holdfast.execution.notes import LINES_MAX, Notes
from holdfast.store.statements import sql
from holdfast.testing.factories import a_running_task
from holdfast.worker.runtime.worker import Worker

CUT = """
select pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and query like '%holdfast: %' and random() < 0.3
"""


def app_with(*functions, **options) -> hf.App:
    app = hf.App("local")
    for function in functions:
        app.action(**options)(function)
    return app


async def notes_of(client):
    return await client.engine.database.fetch("select task_id, kind, detail::jsonb from holdfast.note order by seq")


async def test_a_worker_claims_only_actions_it_has(running_worker, client_of):
    async def known() -> str:
        return "known"

    async def unknown() -> str:
        return "unknown"

    async with client_of(app_with(known, unknown)) as client, running_worker(app=app_with(known)):
        stranger, friend = await client.enqueue("local.unknown"), await client.enqueue("local.known")
        assert await friend.result(20) == "known"
        row = await client.engine.database.fetchrow("select task_id, state, attempt from holdfast.live")
        assert (str(row["task_id"]), row["state"], row["attempt"]) == (stranger.task_id, b"q", 0)


async def test_a_drained_worker_finishes_what_it_holds_takes_nothing_more_and_leaves(engine, client_of, eventually):
    gate = asyncio.Event()

    async def work() -> str:
        await gate.wait()
        return "done"

    app = app_with(work)
    async with client_of(app) as client:
        worker = Worker(engine, app.actions)
        running = asyncio.create_task(worker.run())
        held = await client.enqueue("local.work")
        await eventually(lambda: worker.state.slots_taken)
        await engine.database.fetch(sql("drain_worker"), worker.worker_id)
        await eventually(lambda: worker.state.is_draining)
        left = await client.enqueue("local.work")
        # As after a long silence, when it was shown as lost and is back.
        await engine.database.fetch("update holdfast.worker set state = 'active'")
        gate.set()
        await asyncio.wait_for(running, 20)
        assert worker.state.is_drained and await held.result(20) == "done"
        rows = await engine.database.fetch("select task_id, state from holdfast.live")
        assert [(str(row["task_id"]), row["state"]) for row in rows] == [(left.task_id, b"q")]


LATER = """
with odd as (
  update holdfast.policy set content = jsonb_set(content, '{rules}', '"later"') where max_retries = 7
)
update holdfast.flow set definition = jsonb_set(definition, '{nodes,0,kind}', '"later"')
"""


async def test_what_cannot_be_read_ends_neither_a_worker_nor_what_it_has(
    running_worker, client_of, eventually, engine, caplog
):
    """A policy and a flow as a newer version might write them, claimed together with work like any other."""
    gate = asyncio.Event()

    async def slow() -> str:
        await gate.wait()
        return "done"

    async def node() -> None: ...

    app = app_with(slow, node, retry={"max_retries": 0})
    flow = app.flow(lambda: app.actions["local.node"](), name="local.odd")
    async with client_of(app) as client:
        beside = await client.enqueue("local.slow")
        await client.start(flow)
        await client.enqueue(app.actions["local.node"].options(max_retries=7))
        await engine.database.fetch(LATER)
        async with running_worker(app=app) as worker:
            for what in ("settling each alone", "is not run here: its policy"):
                await eventually(lambda what=what: what in caplog.text)
            gate.set()
            assert await beside.result(20) == "done"
            assert not worker.state.is_stopping


async def test_a_worker_the_database_does_not_know_any_more_leaves(engine):
    worker = Worker(engine, {})
    running = asyncio.create_task(worker.run())
    await worker.ready.wait()
    await engine.database.fetch("update holdfast.worker set state = 'gone', ended_at = holdfast.instant()")
    await asyncio.wait_for(running, 20)


async def test_what_an_attempt_says_is_kept_also_its_last_word(running_worker, client_of):
    async def chatty(ctx: hf.Context) -> None:
        for number in range(3):
            ctx.log(f"line {number}", number=number)
        ctx.progress(1, 3, "a third")
        ctx.progress(3, 3, "all")

    app = app_with(chatty)
    async with client_of(app) as client, running_worker(app=app):
        await (await client.enqueue("local.chatty")).result(20)
        kept = [(row["kind"], row["detail"]) for row in await notes_of(client)]
    assert [kind for kind, _ in kept] == ["log", "log", "log", "progress"], "of progress, the latest counts"
    assert '"line 2"' in kept[2][1] and '"all"' in kept[3][1]


async def test_each_of_many_tasks_claimed_at_once_keeps_its_own_progress(running_worker, client_of, eventually):
    gate = asyncio.Event()

    async def busy(ctx: hf.Context) -> None:
        ctx.progress(1, 2)
        await gate.wait()

    app = app_with(busy)
    async with client_of(app) as client:
        tasks = [await client.enqueue("local.busy") for _ in range(5)]
        async with running_worker(app=app):
            await eventually(lambda: heard_of(client, 5))
            gate.set()
            for task in tasks:
                await task.result(20)


async def heard_of(client, count: int) -> bool:
    return len({row["task_id"] for row in await notes_of(client)}) == count


def test_progress_that_could_not_be_stored_comes_back_for_each_attempt():
    notes = Notes()
    leases = [SimpleNamespace(task_id=one, attempt=attempt, lease_token=1) for one in (1, 2) for attempt in (1, 2)]
    for lease in leases:
        notes.add(lease, "progress", {})
    notes._put_back(notes._take())
    assert len(notes._take()) == len(leases)


async def test_a_running_attempt_is_heard_before_it_ends(running_worker, client_of, eventually):
    gate = asyncio.Event()

    async def slow(ctx: hf.Context) -> None:
        ctx.log("half way")
        await gate.wait()

    app = app_with(slow)
    async with client_of(app) as client, running_worker(app=app):
        task = await client.enqueue("local.slow")
        await eventually(lambda: notes_of(client))
        gate.set()
        await task.result(20)


async def test_a_note_that_cannot_be_stored_costs_no_result(running_worker, client_of):
    async def odd(ctx: hf.Context) -> str:
        ctx.log("fine", value=float("nan"), what={1, object()})
        ctx.log("zero \\x00 byte")
        return "result"

    app = app_with(odd)
    async with client_of(app) as client, running_worker(app=app):
        assert await (await client.enqueue("local.odd")).result(20) == "result"
        assert len(await notes_of(client)) == 2


def test_notes_are_bounded_and_safe_from_many_threads():
    notes = Notes()
    claimed = type("Claimed", (), {"lease_token": 1})()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: notes.add(claimed, "log", {"message": str(n)}), range(LINES_MAX + 100)))
    assert len(notes._lines) == LINES_MAX and notes._dropped == 100


async def test_a_reconnecting_worker_takes_up_only_leases_it_never_heard_of(harness):
    leases = [await a_running_task(harness) for _ in range(3)]
    identity = WorkerIdentity(worker_id=leases[0].worker_id, actions=[], queues=None, lease_seconds=60.0)
    async with harness.engine.database.session() as session:
        known = [(lease.claimed.task_id, lease.token) for lease in leases[:2]]
        found = await held_by(session, identity, known)
    assert [str(claimed.task_id) for claimed in found] == [leases[2].task_id]


async def test_a_lease_taken_up_again_is_a_full_one(harness):
    lease = await a_running_task(harness)
    before = (await harness.task(lease.task_id)).lease_expires_at
    identity = WorkerIdentity(worker_id=lease.worker_id, actions=[], queues=None, lease_seconds=60.0)
    async with harness.engine.database.session() as session:
        assert await held_by(session, identity, [])
    renewed = (await harness.task(lease.task_id)).lease_expires_at
    assert (renewed - before).total_seconds() > 30


@pytest.mark.representative(one_in=2)
async def test_cutting_connections_makes_no_attempt_run_twice(running_worker, client_of, holdfast_url, eventually):
    runs: Counter[int] = Counter()

    async def count(n: int) -> None:
        runs[n] += 1
        await asyncio.sleep(0)

    app = app_with(count)
    async with client_of(app) as client:
        tasks = await client.enqueue_many("local.count", [{"n": n} for n in range(200)])
        cutter = await asyncpg.connect(holdfast_url)
        left = len(tasks)
        async with running_worker(app=app, slots=10):
            while left:
                await cutter.fetch(CUT)
                (left,) = await eventually(lambda left=left: fewer(cutter, left))
        await cutter.close()
    assert len(runs) == len(tasks) and set(runs.values()) == {1}


async def fewer(connection, than: int) -> tuple[int, ...]:
    """How many tasks are left once it is fewer than before, in a tuple: none left is news too."""
    left = await connection.fetchval("select count(*) from holdfast.live")
    return (left,) if left < than else ()
