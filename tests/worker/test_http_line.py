"""What only the line over HTTP has to survive: lost answers, servers that restart, wrong tokens, poisoned reports."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.worker.servers import HttpServer, LossyWay, message

import holdfast as hf
from holdfast.errors import InvalidSettings, Unauthorized
from holdfast.settings.settings import Settings
from holdfast.worker.runtime.state import BATCH_SHARED_MIN, share_of
from holdfast.worker.runtime.worker import Worker
from holdfast.worker.supervisor.http_maintenance import HttpMaintenance
from holdfast.worker.transport.contract import SignOn
from holdfast.worker.transport.http import CONCURRENT_EXCHANGES, HttpTransport, fetch_terms
from holdfast.worker.transport.http_connection import HttpConnection, Server

PATIENT = {"lease_seconds": 10.0, "heartbeat_seconds": 0.2, "poll_seconds": 0.2, "shutdown_seconds": 20.0}
"""A lease that a busy machine does not outlast, for tests in which answers get lost, and not leases."""


@pytest.fixture
def way() -> str:
    """These are about HTTP alone."""
    return "http"


def an_app(function, **options) -> hf.App:
    app = hf.App("local")
    app.action(**options)(function)
    return app


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize("times", [PATIENT], ids=["patient"])
@pytest.mark.parametrize("path", ["/internal/exchange", "/internal/heartbeats", "/internal/wait", "/internal/effects"])
async def test_every_second_answer_may_get_lost(http_server, running_worker, client_of, settings, path, monkeypatch):
    # Every pause is longer than the one before; that they may become seconds is not what this is about.
    monkeypatch.setattr("holdfast.worker.runtime.exchange_loop.RECONNECT_SECONDS_MAX", 0.1)
    ran, sent, seen = Counter(), [], Counter()
    beats = [asyncio.Event()]

    async def work(ctx: hf.Context, n: int) -> int:
        ran[n] += 1
        await ctx.effect("smtp.send", lambda: sent.append(n), key=f"n{n}")
        for _ in range(2):
            await beats[-1].wait()
        return n

    def loses(asked: str) -> bool:
        seen[asked] += 1
        if asked == "/internal/heartbeats":
            beats[-1].set()
            beats.append(asyncio.Event())
        return asked == path and seen[asked] % 2 == (path == "/internal/wait")

    app = an_app(work, max_losses=0, max_retries=0)
    async with LossyWay(http_server().url, loses) as lossy:
        lossy_line = HttpTransport(lossy.url, settings)
        async with client_of(app) as client, running_worker(app=app, line=lossy_line, slots=4):
            # Who is busy asks for no wait: one more task, now and then, until an answer was lost.
            for wave in (range(8), *([n] for n in range(8, 60))):
                tasks = await client.enqueue_many("local.work", [{"n": n} for n in wave])
                assert [await task.result(60) for task in tasks] == list(wave)
                if lossy.lost:
                    break
    assert lossy.lost, "answers were lost"
    assert set(ran.values()) == {1} and sorted(sent) == sorted(ran) == list(range(len(ran)))


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize("times", [PATIENT], ids=["patient"])
@pytest.mark.parametrize("slots", [10, CONCURRENT_EXCHANGES * BATCH_SHARED_MIN], ids=["two", "many"])
@pytest.mark.parametrize("is_first_lost", [True, False])
async def test_a_lost_answer_costs_nothing_of_the_exchanges_beside_it(
    http_server, running_worker, client_of, settings, is_first_lost, slots
):
    """One that is still on its way to the server claims there: whoever resumed before would never hear of it."""
    ran, concurrent_exchanges = Counter(), []
    both, lost, resumed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(n: int) -> int:
        ran[n] += 1
        return n

    async def holds(path: str, body: bytes) -> None:
        if path != "/internal/exchange" or lost.is_set():
            if b'"known":' in body:
                resumed.set()
            return
        if b'"completions":' not in body and not concurrent_exchanges:
            return
        concurrent_exchanges.append(asyncio.current_task())
        is_second = len(concurrent_exchanges) == 2
        if is_second:
            both.set()
        await asyncio.wait_for(both.wait(), 20)
        if is_second is is_first_lost:
            await lost.wait()
            with suppress(TimeoutError):
                await asyncio.wait_for(resumed.wait(), 0.5)

    def loses(path: str) -> bool:
        if asyncio.current_task() in concurrent_exchanges and not lost.is_set():
            lost.set()
            return True
        return False

    app = an_app(work, max_losses=0, max_retries=0)
    async with LossyWay(http_server().url, loses, holds) as lossy, client_of(app) as client:
        tasks = await client.enqueue_many("local.work", [{"n": n} for n in range(10 * slots)])
        async with running_worker(app=app, line=HttpTransport(lossy.url, settings), slots=slots):
            assert [await task.result(30) for task in tasks] == list(range(10 * slots))
    assert len(lossy.lost) == 1 and set(ran.values()) == {1}


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; "
    "test_a_server_that_stays_away_stops_the_work_before_its_lease_ends is fast"
)
@pytest.mark.parametrize("times", [PATIENT], ids=["patient"])
async def test_a_few_exchanges_are_under_way_at_once(http_server, running_worker, client_of, settings):
    """None is answered before the last of them was made."""
    under_way, all_are = 0, asyncio.Event()

    async def work(n: int) -> int:
        return n

    async def holds(path: str, body: bytes) -> None:
        nonlocal under_way
        if path != "/internal/exchange" or (b'"completions":' not in body and not under_way):
            return
        under_way += 1
        if under_way == CONCURRENT_EXCHANGES:
            all_are.set()
        await asyncio.wait_for(all_are.wait(), 20)

    slots = CONCURRENT_EXCHANGES * BATCH_SHARED_MIN
    app = an_app(work)
    async with LossyWay(http_server().url, lambda _: False, holds) as way, client_of(app) as client:
        tasks = await client.enqueue_many("local.work", [{"n": n} for n in range(10 * slots)])
        async with running_worker(app=app, line=HttpTransport(way.url, settings), slots=slots):
            assert [await task.result(30) for task in tasks] == list(range(10 * slots))


def test_exchanges_share_the_slots_but_carry_no_handful_each():
    assert [share_of(slots, 1) for slots in (1, 100)] == [1, 100]
    assert [share_of(slots, 4) for slots in (1, 2, 9, 100, 300, 400, 1_000)] == [1, 1, 5, 50, 100, 100, 250]


@pytest.mark.parametrize("times", [PATIENT], ids=["patient"])
async def test_a_server_that_restarts_is_waited_for(http_server, running_worker, client_of):
    ran, began, go = Counter(), asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def work(n: int) -> int:
        ran[n] += 1
        began.release()
        await go.acquire()
        return n

    app, server = an_app(work, max_losses=0, max_retries=0), http_server()
    async with client_of(app) as client, running_worker(app=app, slots=10):
        tasks = await client.enqueue_many("local.work", [{"n": n} for n in range(60)])
        for started in (10, 25):
            for _ in range(started):
                await began.acquire()
            await asyncio.to_thread(server.stop)
            for _ in range(25):
                go.release()
            await asyncio.to_thread(server.start)
        for _ in tasks:
            go.release()
        assert [await task.result(30) for task in tasks] == list(range(60))
    assert set(ran.values()) == {1}


async def test_a_server_that_stays_away_stops_the_work_before_its_lease_ends(
    http_server, running_worker, client_of, engine
):
    began, stopped = asyncio.Event(), asyncio.Event()

    async def slow(ctx: hf.Context) -> int:
        if ctx.attempt > 1:
            return ctx.attempt
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.set()
            raise
        return 0

    app, server = an_app(slow, max_losses=2), http_server()
    async with client_of(app) as client, running_worker(app=app):
        task = await client.enqueue("local.slow")
        await began.wait()
        await asyncio.to_thread(server.stop)
        await asyncio.wait_for(stopped.wait(), 20)
        assert await engine.database.fetchval("select state from holdfast.live") in (b"r", b"q")
        await asyncio.to_thread(server.start)
        assert await task.result(30) == 2


async def test_a_worker_that_the_server_forgot_leaves(http_server, line, engine):
    worker = Worker(line(), {})
    running = asyncio.create_task(worker.run())
    await worker.ready.wait()
    await engine.database.fetch("update holdfast.worker set state = 'gone', ended_at = holdfast.instant()")
    await asyncio.wait_for(running, 20)


async def test_the_pace_is_the_servers(http_server, settings, times):
    asked = await fetch_terms(http_server().url, Settings(env="local"))
    assert (asked.worker.lease_seconds, asked.worker.heartbeat_seconds) == (
        times["lease_seconds"],
        times["heartbeat_seconds"],
    )
    assert asked.limits.output_bytes_max == settings.limits.output_bytes_max


async def test_without_anything_to_be_known_by_a_worker_is_told_what_to_do():
    with pytest.raises(InvalidSettings, match="HOLDFAST_TOKEN") as caught:
        HttpTransport("http://127.0.0.1:8787", Settings())
    assert caught.value.code == "token_missing"
    with pytest.raises(InvalidSettings, match="HOLDFAST_TOKEN"):
        HttpTransport("http://server.example:8787", Settings(env="local"))


@pytest.mark.parametrize("url", ["http://server.example:8787", "HTTP://10.0.0.5", "http://[2001:db8::1]", "http://0"])
async def test_a_worker_sends_no_token_in_the_clear(url):
    for way in (lambda one: HttpTransport(url, one), lambda one: HttpMaintenance(url, one)):
        with pytest.raises(InvalidSettings, match="https") as caught:
            way(Settings(token="hf_secret"))
        assert caught.value.code == "insecure_server" and "hf_secret" not in str(caught.value)
    with pytest.raises(InvalidSettings, match="https"):
        await fetch_terms(url, Settings(token="hf_secret"))


@pytest.mark.parametrize(
    "url", ["https://server.example", "http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1"]
)
def test_a_token_goes_over_https_or_to_this_machine(url):
    assert "hf_secret" in Server.of(url, Settings(token="hf_secret")).headers


@pytest.mark.parametrize("url", ["http://", "http://:1", "http://a:b", "http://me:secret@host", "http://host/?x=1"])
def test_a_url_that_is_none_is_refused(url):
    with pytest.raises(InvalidSettings) as caught:
        Server.of(url, Settings(token="t"))
    assert caught.value.code == "invalid_url" and "secret" not in str(caught.value)


async def test_a_token_that_is_not_known_is_refused_and_said(http_server):
    with pytest.raises(Unauthorized):
        await fetch_terms(http_server().url, Settings(token="nobody"))


async def test_a_dataset_is_refused_with_what_to_do(running_worker, client_of):
    app = hf.App("local")
    app.dataset("rows", version=1, columns={"n": "bigint"}, key=["n"])

    @app.action(max_retries=0)
    async def write(ctx: hf.Context) -> None:
        await ctx.dataset("rows").append([{"n": 1}])

    async with client_of(app) as client, running_worker(app=app, datasets=app.datasets):
        with pytest.raises(hf.TaskFailed, match="datasets_need_database"):
            await (await client.enqueue("local.write")).result(20)


@pytest.mark.slow(
    "it starts worker processes or waits for leases to end; "
    "test_a_server_that_stays_away_stops_the_work_before_its_lease_ends is fast"
)
async def test_a_report_that_the_server_cannot_take_holds_up_no_other(
    holdfast_url, running_worker, client_of, settings
):
    async def large(size: int) -> str:
        return "x" * size

    strict = HttpServer(
        holdfast_url, replace(settings, limits=replace(settings.limits, output_bytes_max=100)), loops=True
    )
    app = an_app(large, max_losses=0, max_retries=0)
    try:
        careless = HttpTransport(await asyncio.to_thread(strict.start), settings)
        async with client_of(app) as client:
            wrong = await client.enqueue("local.large", size=1_000)
            right = [await client.enqueue("local.large", size=n) for n in range(5)]
            async with running_worker(app=app, line=careless):
                assert [len(await task.result(20)) for task in right] == list(range(5))
                with pytest.raises(hf.TaskFailed, match="LOST"):
                    await wrong.result(30)
    finally:
        await asyncio.to_thread(strict.stop)


@pytest.mark.parametrize(("told", "longest"), [({"wait_seconds_max": 50.0}, 50.0), ({}, 30.0)], ids=["told", "older"])
async def test_a_worker_waits_as_long_as_its_server_allows_and_not_with_all_others(settings, told, longest):
    """A server that does not say is an older one, and would refuse more than it ever took."""
    asked = []

    async def serve(reader, writer):
        while True:
            head, body = await message(reader)
            answer = {"worker_id": "7", "lease_seconds": 10.0, "heartbeat_seconds": 3.0, **told}
            if b" /internal/wait " in head:
                asked.append(json.loads(body)["wait_seconds"])
                answer = {"work": len(asked) == 20}
            encoded = json.dumps(answer).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(encoded) + encoded)

    rung = asyncio.Event()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        line = HttpTransport(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", settings)
        about = {
            "name": "w",
            "version": "",
            "actions": {},
            "claimed_actions": [],
            "flows": {},
            "queues": None,
            "slots": 1,
        }
        listening = SimpleNamespace(on_notification=lambda *_: rung.set(), claimable_slots=lambda: 1)
        await line.sign_on(SignOn(**about, labels={}, schedules=(), origin=""), listening)
        line.await_work(is_free=True)
        await asyncio.wait_for(rung.wait(), 20)
        line.drop()
        await line.sign_off(is_idle=False)
    assert longest * 0.8 <= min(asked) < max(asked) <= longest


async def test_a_silent_connection_that_the_server_closed_is_replaced(http_server, settings):
    server = http_server()
    calls = HttpConnection(Server.of(server.url, settings))
    await calls.get("/internal/terms", dict)
    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(server.start)
    assert (await calls.get("/internal/terms", dict))["lease_seconds"] == settings.worker.lease_seconds
    calls.drop()
