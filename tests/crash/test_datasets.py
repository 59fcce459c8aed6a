"""The k-sweep over datasets: whoever declares, stages, commits, cuts over, rolls back or sweeps dies, or loses its
connection, at every one of its statements. Then others repair and finish, and no row may be missing, doubled or seen
by half."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from tests.crash import dataset_acts as acts
from tests.crash.repair import free_of_victims, register
from tests.crash.strikes import CUTS, strike_at

from holdfast.authoring.app import App
from holdfast.authoring.context import Context
from holdfast.core.tasks.outcome import Completed
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.datasets.cutover import cut_over, finish_rollbacks_once, roll_back
from holdfast.engine.datasets.declare import Generation, add_builds, declare, list_generations
from holdfast.engine.datasets.stage import sweep_stages_once
from holdfast.engine.engine import Engine
from holdfast.engine.leases import report_of
from holdfast.engine.lifecycle.tasks.claim import Claimer, WorkerIdentity
from holdfast.engine.lifecycle.tasks.enqueue import EnqueueOrder, enqueue, intern
from holdfast.engine.lifecycle.tasks.reap import reap_once
from holdfast.engine.lifecycle.tasks.reconcile import reconcile_once
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.errors import Conflict
from holdfast.settings.settings import Settings
from holdfast.store.database import TRANSIENT
from holdfast.testing.crash import FaultMode, ForkServer, Stage, StatementFault
from holdfast.worker.runtime.worker import Worker

pytestmark = pytest.mark.crash

EXPECTED = [(1, 10), (2, 20), (3, 30), (9, 90)]


@pytest.fixture(scope="session")
def writers():
    with ForkServer(Path(acts.__file__)) as made:
        yield made


class Round:
    """One strike on a dataset of its own, and those who repair afterwards."""

    def __init__(self, engine, clock, k):
        self.engine, self.clock = engine, clock
        self.given = {"round": k}
        self.said = []

    @property
    def name(self):
        return acts.dataset_of(self.given).name

    async def declared(self, version=1) -> Generation:
        generation = await declare(self.engine.database, 1, acts.dataset_of(self.given, version))
        self.given["generation_id"] = generation.generation_id
        return generation

    async def running(self):
        """A claimed task whose lease goes to the victim."""
        order = EnqueueOrder(
            tenant_id=1, queue="default", action=acts.ACTION, policy=RetryPolicy(base_backoff_secs=0.001)
        )
        await enqueue(self.engine, await intern(self.engine.catalog, order), [b"{}"])
        claimed = await self.claimed()
        self.given["lease"] = [claimed.task_id, claimed.attempt, str(claimed.lease_token), claimed.policy_id]
        return claimed

    async def claimed(self):
        worker_id = await register(self.engine, "worker", [acts.ACTION])
        identity = WorkerIdentity(worker_id=worker_id, actions=[acts.ACTION], queues=None, lease_seconds=10.0)
        async with self.engine.database.session() as session:
            taken = await Claimer(identity).claim(session, 1, now=time.monotonic())
        await self.engine.catalog.learn((), {one.policy_id for one in taken})
        return taken[0] if taken else None

    async def strike(self, act, mode, writers):
        url = self.engine.database.url
        if mode.is_deadly:
            told = writers.run(act, url=url, mode=mode, k=self.given["round"], given=self.given)
            self.said = list(told.said)
            await free_of_victims(self.engine)
            return told.fired
        fault = StatementFault(mode, self.given["round"])
        for _ in range(3):
            try:
                await getattr(acts, act)(Stage(url=url, tap=fault, given=self.given, say=self.said.append))
                break
            except TRANSIENT:
                assert fault.fired
            except Conflict:
                # The first answer was lost, and what it was about is done.
                assert fault.fired
                break
        return fault.fired

    async def finish(self, generation):
        """Others reap, claim and write the same rows until nothing is live; then they sweep."""
        for _ in range(20):
            await self.clock.advance(seconds=400)
            while (await reap_once(self.engine.database, self.engine.catalog)).count:
                pass
            await reconcile_once(self.engine.database)
            if (claimed := await self.claimed()) is not None:
                given = self.given | {"lease": [*_plain(claimed)]}
                commits = await acts.write(self.engine, given, generation) if generation is not None else ()
                async with self.engine.database.transaction() as session:
                    report = report_of(claimed, Completed(b'"survivor"', commits))
                    assert not (await settle(session, self.engine.catalog, [report])).refused
            elif not await self.engine.database.fetchval("select count(*) from holdfast.live"):
                break
        await finish_rollbacks_once(self.engine.database, self.engine.catalog, grace_seconds=0.0)
        while await sweep_stages_once(self.engine.database):
            pass
        assert await self.engine.database.fetchval("select count(*) from holdfast.dataset_stage") == 0

    async def seen(self):
        found = await self.engine.database.fetch(f"select * from holdfast_data.{self.name} order by 1, 2")
        return [tuple(row) for row in found]

    async def staged(self, version=1):
        return await self.engine.database.fetchval(f"select count(*) from holdfast_data.{self.name}_v{version}_staged")

    async def states(self):
        return {view.version: view.state for view in await list_generations(self.engine.database, 1, self.name)}


def _plain(claimed):
    return claimed.task_id, claimed.attempt, str(claimed.lease_token), claimed.policy_id


async def sweep(engine, clock, mode, writers, record_property, act, arrange, judge, *, statements_min):
    for k in count(1):
        play = Round(engine, clock, k)
        await arrange(play)
        with strike_at(mode, k):
            fired = await play.strike(act, mode, writers)
            await judge(play)
        if not fired:
            break
    record_property("strikes", k - 1)
    assert k > statements_min


@pytest.fixture(params=FaultMode, ids=str)
def strikes(request, engine, clock, writers, record_property):
    async def run(act, arrange, judge, *, statements_min):
        fixed = (engine, clock, request.param, writers, record_property)
        await sweep(*fixed, act, arrange, judge, statements_min=statements_min)

    return run


@pytest.mark.representative(one_in=len(FaultMode))
async def test_a_declaration_is_there_or_not_there(strikes):
    async def arrange(play): ...

    async def judge(play):
        await play.declared()
        assert (await play.seen(), await play.states()) == ([], {1: "current"})

    await strikes("declare_version", arrange, judge, statements_min=8)


@pytest.mark.representative(one_in=len(FaultMode))
async def test_rows_come_once_whatever_happens_to_their_writer(strikes):
    async def arrange(play):
        await play.declared()
        await play.running()

    async def judge(play):
        if True in play.said:
            assert await play.seen() == EXPECTED
        await play.finish(Generation(play.given["generation_id"], acts.dataset_of(play.given)))
        assert (await play.seen(), await play.staged()) == (EXPECTED, 0)

    await strikes("stage_and_commit", arrange, judge, statements_min=10)


async def built(play):
    """Version 1 is current with one row, version 2 holds all of them."""
    first = await play.declared()
    await play.running()
    part = acts.StagedPart(acts.AttemptLease(*acts.lease_of(play.given)), first, acts.Mode.APPEND, 0, "")
    await acts.open_part(play.engine.database, part)
    await acts.stage_batch(play.engine.database, part, [(0, 0)])
    old = acts.Commit(generation_id=first.generation_id, mode=part.mode, rows=1)
    assert await acts.report(play.engine, play.given, (old,))
    second = await play.declared(2)
    await play.running()
    assert await acts.report(play.engine, play.given, await acts.write(play.engine, play.given, second))
    return second


@pytest.mark.representative(one_in=len(FaultMode))
async def test_a_cut_over_shows_the_old_or_the_new_generation_whole(strikes):
    async def judge(play):
        looks = (await play.seen(), await play.states())
        assert looks in (
            ([(0, 0)], {1: "current", 2: "building"}),
            (EXPECTED, {1: "superseded", 2: "current"}),
        )
        if play.said:
            assert looks[0] == EXPECTED
        await cut_over(play.engine.database, 1, play.name, 2, acts.BY)
        assert await play.seen() == EXPECTED

    await strikes("cut_over_version", built, judge, statements_min=6)


@pytest.mark.representative(one_in=len(FaultMode))
async def test_a_cut_over_with_a_completion_happens_with_it_or_not_at_all(strikes):
    async def arrange(play):
        await built(play)
        await play.running()

    async def judge(play):
        is_done = await play.engine.database.fetchval(
            "select count(*) from holdfast.attempt where task_id = $1 and state = 'c'", play.given["lease"][0]
        )
        assert await play.seen() == (EXPECTED if is_done else [(0, 0)])
        if True in play.said:
            assert is_done
        await play.finish(None)

    await strikes("cut_over_with_completion", arrange, judge, statements_min=8)


@pytest.mark.representative(one_in=len(FaultMode))
async def test_a_rollback_cancels_all_of_its_work_in_the_end(strikes):
    async def arrange(play):
        second = await built(play)
        running = await play.running()
        await acts.write(play.engine, play.given, second)
        order = EnqueueOrder(tenant_id=1, queue="elsewhere", action=acts.ACTION, policy=RetryPolicy())
        queued = await enqueue(play.engine, await intern(play.engine.catalog, order), [b"{}"])
        async with play.engine.database.transaction() as session:
            await add_builds(session, second, queued.task_ids)
        play.given["builds"] = [running.task_id, *queued.task_ids]

    async def judge(play):
        assert await play.seen() == [(0, 0)]
        if (await play.states())[2] == "building":
            assert not play.said
            await roll_back(play.engine.database, 1, play.name, 2, acts.BY)
        await finish_rollbacks_once(play.engine.database, play.engine.catalog, grace_seconds=0.0)
        await play.finish(None)
        assert await play.states() == {1: "current", 2: "dropped"}
        ended = await play.engine.database.fetch(
            "select state from holdfast.tasks where task_id = any($1::text[])",
            [str(one) for one in play.given["builds"]],
        )
        assert [row[0] for row in ended] == ["canceled", "canceled"]

    await strikes("roll_back_version", arrange, judge, statements_min=12)


@pytest.mark.representative(one_in=len(FaultMode))
async def test_a_sweep_deletes_what_nobody_commits_and_nothing_else(strikes):
    async def arrange(play):
        generation = await play.declared()
        await play.running()
        await acts.write(play.engine, play.given, generation)
        await play.clock.advance(seconds=400)
        await reap_once(play.engine.database, play.engine.catalog)
        await reconcile_once(play.engine.database)
        claimed = await play.claimed()
        play.given["lease"] = [*_plain(claimed)]
        play.commits = await acts.write(play.engine, play.given, generation)

    async def judge(play):
        while await sweep_stages_once(play.engine.database):
            pass
        assert await play.staged() == 4
        assert await acts.report(play.engine, play.given, play.commits)
        assert (await play.seen(), await play.staged()) == (EXPECTED, 0)

    await strikes("sweep", arrange, judge, statements_min=5)


@pytest.mark.representative(one_in=len(FaultMode))
async def test_work_that_builds_a_version_is_known_as_such_or_not_there(strikes):
    async def arrange(play):
        await play.declared()

    async def judge(play):
        live, builds = await play.engine.database.fetchrow(
            "select count(*), (select count(*) from holdfast.dataset_build b where b.generation_id = $1)"
            " from holdfast.live",
            play.given["generation_id"],
        )
        assert live == builds and live in (0, 2, 4)
        if play.said:
            assert live
        await play.finish(None)

    await strikes("build", arrange, judge, statements_min=3)


@pytest.mark.parametrize("mode", CUTS)
async def test_a_real_worker_cut_off_at_every_statement_writes_each_row_once(mode, engine, record_property):
    """Without a key, so that a batch staged twice, or a completion counted twice, would show."""
    settings = Settings(url=engine.database.url)
    settings = replace(settings, worker=replace(settings.worker, poll_seconds=0.2, slots=1))
    app = App("shop", settings=settings)
    app.dataset("lines", columns={"round": "bigint", "number": "bigint"})

    @app.action
    async def write(ctx: Context, round: int, number: int) -> int:
        return await ctx.dataset("lines").append([[round, number], [round, number + 100]])

    async with app.client() as client, Engine(engine.database.url, settings) as cut:
        fault = cut.database.tap = StatementFault(mode, 0)
        worker = Worker(cut, app.actions, datasets=app.datasets)
        running = asyncio.create_task(worker.run())
        await worker.ready.wait()
        missed = 0
        for k in count(1):
            fault.arm(k)
            tasks = await client.enqueue_many(write, [{"round": k, "number": number} for number in range(2)])
            assert [await task.result(timeout=20) for task in tasks] == [2, 2], fault.statement
            found = await engine.database.fetch("select number from holdfast_data.lines where round = $1 order by 1", k)
            assert [row[0] for row in found] == [0, 1, 100, 101], fault.statement
            # Two sessions may speak at once, and the fault counts both: one round without a strike is not the end.
            missed = 0 if fault.fired else missed + 1
            if missed == 3:
                break
        worker.stop()
        await running
    record_property("strikes", k - missed)
    assert k > 15
