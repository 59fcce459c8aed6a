"""Workers that offer a URL are asked, and shown as they answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.net.receiver import receiving

from holdfast.engine.engine import Engine
from holdfast.engine.queries.workers import list_workers, show_worker
from holdfast.engine.workers.probe import probe_once
from holdfast.net.address import EgressRules
from holdfast.net.guarded_request import Guarded
from holdfast.server.worker_api.remote_workers import RemoteWorkers
from holdfast.settings.settings import EgressSettings, Settings
from holdfast.worker.runtime.worker import Worker


@pytest.fixture
def holdfast_settings():
    return Settings(egress=EgressSettings(allow=("127.0.0.0/8",), ports="*"))


@pytest.fixture
async def receiver():
    async with receiving() as made:
        yield made


@pytest.fixture
async def probe(engine, clock):
    """One pass when it is time again; answers how many were asked."""
    guarded = Guarded(EgressRules.of(engine.settings.egress))

    async def run():
        await clock.advance(seconds=engine.settings.webhooks.probe_seconds + 1)
        return await probe_once(engine, guarded)

    yield run
    await guarded.close()


async def registered(engine, labels="{}"):
    workers = RemoteWorkers(engine)
    return await workers.register(name="w", actions=["a"], queues=None, slots=1, version="", labels=labels)


async def offering(engine, url):
    return await registered(engine, f'{{"probe_url": "{url}"}}')


async def test_a_worker_that_answers_is_healthy(engine, receiver, probe):
    worker_id = await offering(engine, receiver.url)
    assert (await show_worker(engine.database, worker_id)).probe.is_healthy is None
    assert await probe() == 1
    probed = (await show_worker(engine.database, worker_id)).probe
    assert (probed.is_healthy, probed.failures, probed.detail) == (True, 0, "it answered 204")
    assert [asked.method for asked in receiver.asked] == ["GET"]


async def test_failures_in_a_row_make_it_unhealthy_and_one_answer_well_again(engine, receiver, probe):
    await offering(engine, receiver.url)
    await probe()
    receiver.answers = [500, 500, 500, 200]
    seen = []
    for _ in range(4):
        await probe()
        (worker,) = await list_workers(engine.database)
        seen.append((worker.probe.is_healthy, worker.probe.failures))
    assert seen == [(True, 1), (True, 2), (False, 3), (True, 0)]


async def test_a_worker_without_a_url_and_one_that_left_are_not_asked(engine, receiver, probe, harness):
    await registered(engine)
    gone = await offering(engine, receiver.url)
    await engine.database.fetch(
        "update holdfast.worker set state = 'gone', ended_at = now() where worker_id = $1", gone
    )
    assert await probe() == 0
    assert receiver.asked == []


async def test_each_turn_is_one_copys(engine, receiver, probe):
    await offering(engine, receiver.url)
    assert await probe() == 1
    guarded = Guarded(EgressRules.of(engine.settings.egress))
    assert await probe_once(engine, guarded) == 0
    await guarded.close()


async def test_an_inner_url_is_not_asked(engine, probe):
    worker_id = await offering(engine, "http://169.254.169.254/latest/meta-data")
    await probe()
    probed = (await show_worker(engine.database, worker_id)).probe
    assert probed.failures == 1
    assert "public internet" in probed.detail


async def test_a_worker_registers_the_url_of_its_settings(engine, receiver):
    settings = replace(engine.settings, worker=replace(engine.settings.worker, probe_url=receiver.url))
    async with Engine(engine.database.url, settings) as own, Worker(own, {}).signed_on():
        (worker,) = await list_workers(engine.database)
    assert worker.probe.url == receiver.url


async def test_a_verdict_that_comes_late_is_left_out(engine, receiver, probe, clock):
    worker_id = await offering(engine, receiver.url)

    async def asked_again(_asked):
        receiver.on_asked = None
        receiver.answers = [500, 204]
        await probe()

    receiver.on_asked = asked_again
    await probe()
    assert (await show_worker(engine.database, worker_id)).probe.failures == 1
