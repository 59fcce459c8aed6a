"""What is heard while an exchange is under way: no answer covers it up, and no other flight takes it away.

Beats, polls and leases are long here, so that nothing but what is tested wakes the worker in time.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.worker.servers import LossyWay

import holdfast as hf
from holdfast.engine.lifecycle.tasks.heartbeat import Beat
from holdfast.errors import Unavailable
from holdfast.worker.runtime.work_signal import WorkSignal
from holdfast.worker.runtime.worker import Worker
from holdfast.worker.transport.database import DatabaseTransport
from holdfast.worker.transport.http import HttpTransport

SECONDS_MAX = 8
"""Before the first poll of a worker over HTTP."""
SLOTS = 10
UNHEARD = {"lease_seconds": 600.0, "heartbeat_seconds": 190.0, "poll_seconds": 60.0, "shutdown_seconds": 60.0}
A_BEAT = Beat(renewed=frozenset(), lost=frozenset(), canceled=frozenset(), worker_state="active")


@pytest.fixture
def times() -> dict[str, float]:
    return dict(UNHEARD)


@pytest.fixture
def way() -> str:
    """Only over HTTP there is more than one flight."""
    return "http"


class Gated:
    """An app whose attempts begin, say so, and end when they are told to."""

    def __init__(self) -> None:
        self.app = hf.App("local")
        self.began = [asyncio.Event() for _ in range(2 * SLOTS)]
        self.may_end = [asyncio.Event() for _ in range(2 * SLOTS)]
        self.noted = asyncio.Event()

        @self.app.action(max_losses=0, max_retries=0)
        async def work(ctx: hf.Context, n: int) -> int:
            self.began[n].set()
            await self.may_end[n].wait()
            if self.noted.is_set():
                ctx.log("said while others were under way")
                await asyncio.Event().wait()
            return n

    async def have_begun(self, *numbers: int) -> None:
        for n in numbers:
            await asyncio.wait_for(self.began[n].wait(), SECONDS_MAX)

    def end(self, *numbers: int) -> None:
        for n in numbers:
            self.may_end[n].set()


@pytest.fixture
def gated() -> Gated:
    return Gated()


class OrderedLine(HttpTransport):
    """Exchanges by number. `sent` says that one is about to leave, `go` lets it, `back` that the server answered, and
    `give` hands the answer on. Nothing holds the first one back."""

    def __init__(self, *arguments: object, lost: int = 0) -> None:
        super().__init__(*arguments)
        self.count = 0
        self._lost = lost
        self.sent, self.go, self.back, self.give = ([asyncio.Event() for _ in range(9)] for _ in range(4))

    async def exchange(self, *arguments, **options):
        self.count += 1
        nth = self.count
        if nth not in (2, 3):
            return await super().exchange(*arguments, **options)
        self.sent[nth].set()
        await self.go[nth].wait()
        done = await super().exchange(*arguments, **options)
        self.back[nth].set()
        await self.give[nth].wait()
        if nth == self._lost:
            raise Unavailable("The answer was lost.")
        return done

    async def is_sent(self, nth: int) -> None:
        await asyncio.wait_for(self.sent[nth].wait(), SECONDS_MAX)

    async def answers(self, nth: int) -> None:
        self.go[nth].set()
        await asyncio.wait_for(self.back[nth].wait(), SECONDS_MAX)


@pytest.fixture
def ordered(http_server, settings):
    return lambda **options: OrderedLine(http_server().url, settings, **options)


@pytest.fixture
def under_way(ordered, running_worker, client_of, gated):
    """A worker with two exchanges under way: the second one, and the third beside it with three reports. Held back are
    both; five attempts began."""

    @asynccontextmanager
    async def begin(**options):
        transport = ordered(**options)
        async with client_of(gated.app) as client:
            await client.enqueue_many("local.work", [{"n": n} for n in range(SLOTS // 2)])
            async with running_worker(app=gated.app, line=transport, slots=SLOTS) as worker:
                await gated.have_begun(*range(SLOTS // 2))
                await transport.is_sent(2)
                gated.end(0, 1, 2)
                await transport.is_sent(3)
                yield worker, transport, client

    return begin


async def test_what_ends_during_an_exchange_is_reported_after_it(
    http_server, running_worker, client_of, settings, gated, eventually
):
    """The flights beside hear of it too, and find that it is not worth one of them."""
    reported, go = asyncio.Event(), asyncio.Event()

    async def holds(path: str, body: bytes) -> None:
        if path == "/internal/exchange" and b'"completions":[{' in body and not reported.is_set():
            reported.set()
            await go.wait()

    async with LossyWay(http_server().url, lambda _: False, holds) as slow, client_of(gated.app) as client:
        transport = HttpTransport(slow.url, settings)
        async with running_worker(app=gated.app, line=transport, slots=SLOTS) as worker:
            first, second = await client.enqueue_many("local.work", [{"n": 0}, {"n": 1}])
            await gated.have_begun(0, 1)
            gated.end(0)
            await asyncio.wait_for(reported.wait(), SECONDS_MAX)
            gated.end(1)
            await eventually(lambda: worker.state.reports)
            go.set()
            assert [await first.result(SECONDS_MAX), await second.result(SECONDS_MAX)] == [0, 1]


async def test_a_stop_during_an_exchange_is_heard_after_it(ordered, client_of, gated):
    transport = ordered()
    worker = Worker(transport, gated.app.actions, slots=SLOTS)
    async with client_of(gated.app) as client:
        await client.enqueue("local.work", n=0)
        running = asyncio.create_task(worker.run())
        await gated.have_begun(0)
        gated.end(0)
        await transport.is_sent(2)
        worker.stop()
        transport.give[2].set()
        await transport.answers(2)
        await asyncio.wait_for(running, SECONDS_MAX)


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize("lost", [2, 3], ids=["first", "beside"])
async def test_what_a_lost_answer_brought_is_asked_for_whatever_the_other_says(under_way, gated, lost, monkeypatch):
    """The answer that arrives says that there is no more work, and it is right."""
    monkeypatch.setattr("holdfast.worker.runtime.exchange_loop.RECONNECT_SECONDS_FIRST", 1.0)
    arrives = 5 - lost
    async with under_way(lost=lost) as (_, transport, client):
        await client.enqueue_many("local.work", [{"n": n} for n in (5, 6, 7)])
        await transport.answers(lost)
        transport.give[lost].set()
        await transport.answers(arrives)
        transport.give[arrives].set()
        await gated.have_begun(5, 6, 7)


async def test_notes_are_due_until_an_exchange_took_them_along(under_way, gated, engine, eventually):
    async with under_way() as (worker, transport, _):
        await transport.answers(2)
        await transport.answers(3)
        gated.noted.set()
        gated.end(4)
        await eventually(lambda: worker.state.notes)
        worker.state.apply_heartbeat(A_BEAT, {})
        transport.give[3].set()
        await eventually(lambda: not worker.exchange_loop.has_additional)
        transport.give[2].set()

        async def is_kept() -> bool:
            return bool(await engine.database.fetchval("select count(*) from holdfast.note"))

        await eventually(is_kept, seconds_max=SECONDS_MAX)


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; "
    "test_what_a_lost_answer_brought_is_asked_for_whatever_the_other_says is fast"
)
async def test_a_drain_ends_with_the_last_exchange_whichever_flight_makes_it(under_way, gated, eventually):
    async with under_way() as (worker, transport, _):
        gated.end(3, 4)
        worker.state.apply_heartbeat(replace(A_BEAT, worker_state="draining"), {})
        await transport.answers(2)
        transport.give[2].set()
        await eventually(lambda: not worker.state.running and not worker.state.reports)
        transport.give[3].set()
        await transport.answers(3)
        await eventually(lambda: worker.state.is_drained, seconds_max=SECONDS_MAX)


class RungLine(DatabaseTransport):
    """Hears nothing but what the test rings, and has something done after its first look, before the answer."""

    async def sign_on(self, declaration, worker):
        self.notify = worker.on_notification
        worker.on_notification = lambda *_: None
        return await super().sign_on(declaration, worker)

    async def exchange(self, *arguments, **options):
        done = await super().exchange(*arguments, **options)
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
            self.notify(0, ())
        return done


async def test_a_ring_during_a_claim_is_answered_by_the_next(engine, running_worker, client_of, gated):
    transport = RungLine(engine)
    async with client_of(gated.app) as client:
        transport.meanwhile = lambda: client.enqueue("local.work", n=0)
        async with running_worker(app=gated.app, line=transport, slots=SLOTS):
            await gated.have_begun(0)


async def test_an_answer_covers_the_rings_before_it_alone():
    work_signal = WorkSignal(1)
    asked = work_signal.notification_count
    work_signal.notify()
    work_signal.record_claim(asked, may_have_more=False, has_found=False)
    assert work_signal.may_have_work
    work_signal.record_claim(work_signal.notification_count, may_have_more=False, has_found=False)
    assert not work_signal.may_have_work
    work_signal.record_claim(asked, may_have_more=True, has_found=True)
    assert work_signal.may_have_work and work_signal.has_plenty


async def test_a_wake_up_is_heard_by_every_flight_once():
    work_signal = WorkSignal(3)
    waiting = [asyncio.create_task(work_signal.wait(SECONDS_MAX, flight)) for flight in (0, 1)]
    await asyncio.sleep(0)
    work_signal.wake()
    await asyncio.gather(*waiting)
    await work_signal.wait(float("inf"), 2)
    for flight in range(3):
        again = asyncio.create_task(work_signal.wait(float("inf"), flight))
        await asyncio.sleep(0)
        assert not again.done()
        again.cancel()
