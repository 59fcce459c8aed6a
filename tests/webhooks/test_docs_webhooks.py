"""The receiver and the reporter of the page about webhooks do what it says."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest
from tests.cli.conftest import invoke
from tests.engine.test_observe import until_settled

from holdfast.engine.engine import Engine
from holdfast.engine.webhooks.deliver import deliver_webhooks_once
from holdfast.settings.settings import Settings
from holdfast.testing.engine_harness import EngineHarness
from holdfast.testing.factories import a_completed_task
from holdfast.testing.run_coroutine import run_coroutine
from holdfast.webhooks import signed

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "webhooks.md").read_text()
SECRET = re.search(r"whsec_[\w+/=]+", PAGE)[0]


def test_the_receiver_of_the_page_believes_drops_and_refuses():
    page: dict = {}
    exec(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], page)
    receive, body = page["receive"], b"{}"
    given = signed("evt_1", int(time.time()), body, [SECRET])
    assert [receive(given, body), receive(given, body), receive(given, b"[]")] == [204, 200, 401]


class Producer:
    """In place of a Kafka: keeps what is sent."""

    sent: ClassVar[list] = []
    steps: ClassVar[list] = []

    def __init__(self, *, bootstrap_servers):
        assert asyncio.get_running_loop() and bootstrap_servers

    async def start(self):
        self.steps.append("start")

    async def send_and_wait(self, topic, *, key, value):
        self.sent.append((topic, key, json.loads(value)["type"]))

    async def stop(self):
        self.steps.append("stop")


@pytest.fixture
def shop(monkeypatch, tmp_path):
    """The module of the page, where its reporter is found."""
    [text] = re.findall(r"```python\n# shop/kafka.py\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()  # else any other `shop` on the path comes first
    (tmp_path / "shop" / "kafka.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    aiokafka = ModuleType("aiokafka")
    aiokafka.AIOKafkaProducer = Producer
    monkeypatch.setitem(sys.modules, "aiokafka", aiokafka)
    for name in ("shop", "shop.kafka"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in ("shop", "shop.kafka"):
        sys.modules.pop(name, None)
    Producer.sent.clear()
    Producer.steps.clear()


def test_the_reporter_of_the_page_is_added_tried_and_told(holdfast_url, shop):
    [allowed] = re.findall(r"^\$ export HOLDFAST_REPORTERS=(\S+)$", PAGE, re.MULTILINE)
    environ = {"HOLDFAST_URL": holdfast_url, "HOLDFAST_REPORTERS": allowed}
    commands = re.findall(r"^\$ holdfast (webhook \w+ kafka.*)\n(?:(kafka\t.*)\n)?", PAGE, re.MULTILINE)
    for command, said in commands:
        ran = invoke(*shlex.split(command), **environ)
        assert (ran.code, ran.out.startswith(said)) == (0, True), ran
    assert [kind for *_, kind in Producer.sent] == ["webhook.test"]

    async def deliver():
        async with Engine(holdfast_url, Settings.load(environ)) as engine:
            harness, guarded = EngineHarness(engine), None
            await a_completed_task(harness)
            await until_settled(harness)
            await deliver_webhooks_once(engine, guarded)

    run_coroutine(deliver())
    assert [kind for *_, kind in Producer.sent] == ["webhook.test", "task.started", "task.completed"]
    assert all(key.startswith((b"evt_", b"test_")) and topic == kind for topic, key, kind in Producer.sent)
    assert Producer.steps == ["start", "stop"] * 2
