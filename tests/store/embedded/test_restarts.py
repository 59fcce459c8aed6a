"""Ids stay short on the embedded server: its restarts begin no epoch. A server of one's own jumps, as a copy would."""

from __future__ import annotations

import pytest
from tests.own_server import OwnServer

from holdfast.engine.engine import Engine
from holdfast.settings.settings import Settings
from holdfast.testing.engine_harness import EngineHarness
from holdfast.testing.factories import a_task

CLOSE = 100
"""A sequence skips what it had cached when its server crashed."""


async def next_id(url: str) -> int:
    async with Engine(url, Settings(unsafe=True), migrates=True) as engine:
        return int((await EngineHarness(engine).enqueue(a_task())).task_id)


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize(("embedded", "is_close"), [("on", True), ("off", False)])
async def test_ids_go_on_where_they_were_after_a_restart_of_the_embedded_server(tmp_path, embedded, is_close):
    server = OwnServer(tmp_path, **{"holdfast.embedded": embedded})
    try:
        before = await next_id(server.url)
        server.crash()
        server.recover()
        after = await next_id(server.url)
    finally:
        server.close()
    assert after > before and (after - before < CLOSE) is is_close
