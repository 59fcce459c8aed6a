"""`/metrics`: figures of the caller's tenant, in a format that Prometheus reads, and each on its page."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pytest
from tests.engine.test_observe import until_settled

from holdfast.engine.queries.metrics import Measure, Measured
from holdfast.server.loop_lag import LoopLag
from holdfast.server.metrics import Metric, of_process, of_work, page
from holdfast.settings.settings import Settings
from holdfast.store.pool import PoolUse
from holdfast.testing.factories import a_completed_task, a_failed_task, a_running_task, a_task

DOCS = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text()
LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)+)\})? (-?[0-9.e+-]+)')


def samples(text):
    """Every sample by its name and labels; refuses a line that is none."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("# "):
            match = LINE.fullmatch(line)
            assert match, line
            found[(match[1], match[2] or "")] = float(match[3])
    return found


async def scraped(call):
    answer = await call.get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return samples(answer.body.decode())


async def test_what_is_there_now_is_counted_by_queue(call, harness):
    await a_running_task(harness)
    await harness.enqueue(a_task())
    await harness.enqueue(a_task())
    told = await scraped(call)
    queue = next(labels for name, labels in told if name == "holdfast_queue_depth")
    assert told["holdfast_queue_depth", queue] == 2
    assert told["holdfast_queue_running", queue] == 1
    assert told["holdfast_queue_retrying", queue] == 0
    assert told["holdfast_queue_oldest_seconds", queue] >= 0
    assert told["holdfast_workers", 'state="active"'] == 1


async def test_what_happens_after_the_first_reading_is_counted(call, harness):
    await a_completed_task(harness)
    await until_settled(harness)
    await scraped(call)
    await a_completed_task(harness)
    await a_failed_task(harness)
    await until_settled(harness)
    told = await scraped(call)
    ended = {labels: value for (name, labels), value in told.items() if name == "holdfast_attempts_total" and value}
    assert ended == {'outcome="completed"': 1, 'outcome="failed"': 1}
    assert told["holdfast_events_total", 'kind="task.started"'] == 2


async def test_nobody_reads_without_a_name(call):
    assert (await call.get("/metrics", x_dev_user=None)).status == 401


async def test_a_tenant_sees_its_own_rows_only(engine, harness):
    await engine.database.fetch("insert into holdfast.tenant (tenant_id, name) values (2, 'other')")
    measure = Measure()
    await measure.read(engine.database, 2)
    await a_completed_task(harness)
    measured = await measure.read(engine.database, 2)
    assert (measured.queues, measured.workers, dict(measured.events)) == ([], [], {})


async def test_counting_is_bounded_and_goes_on_with_the_next_reading(engine, harness, monkeypatch):
    monkeypatch.setattr("holdfast.engine.queries.metrics.BATCHES_MAX", 2)
    measure = Measure()
    await measure.read(engine.database, 1)
    for _ in range(5):
        await a_running_task(harness)
    await until_settled(harness)
    seen = [await measure.read(engine.database, 1) for _ in range(3)]
    assert [(one.events.get("task.started"), one.is_behind) for one in seen] == [(2, True), (4, True), (5, False)]


def test_odd_names_are_escaped():
    text = page([Metric("x", "gauge", "X.", [({"queue": 'a"b\\c\nd'}, 1), ({"queue": "e"}, None)])])
    assert text == '# HELP x X.\n# TYPE x gauge\nx{queue="a\\"b\\\\c\\nd"} 1\n'


async def test_a_blocked_loop_shows():
    lag = LoopLag()
    lag.SECONDS = 0.01
    reading = asyncio.create_task(lag.once())
    await asyncio.sleep(0)
    time.sleep(0.06)  # noqa: ASYNC251 - blocking is what it is to notice
    await reading
    assert lag.seconds >= 0.04


def test_every_metric_is_on_its_page():
    measured = Measured(queues=[], workers=[], events={}, is_behind=False)
    told = [*of_work(measured), *of_process(PoolUse(size=1, open=1, in_use=0, waiting=0), 0.0, 0.0)]
    assert {metric.name for metric in told} == set(re.findall(r"^\| `(holdfast_\w+)`", DOCS, re.MULTILINE))


@pytest.fixture
def holdfast_settings():
    return Settings(env="local", port=0)
