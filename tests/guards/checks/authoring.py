"""What guards runs that are started under a key."""

from __future__ import annotations

from tests.core.flows import a_flow
from tests.guards.checks.stage import Stage, check, refuses

from holdfast.engine.lifecycle.runs.start import RunOptions, start
from holdfast.errors import Conflict


@check
async def a_key_stands_for_one_run(stage: Stage) -> None:
    engine, options = stage.engine, RunOptions(key="order-1")
    snapshot = await stage.harness.runs.snapshot(a_flow("a>b"))
    runs = [
        (await start(engine.database, engine.catalog, snapshot, [given], options))[0]
        for given in (b'{"day": 1}', b'{"day":1}')
    ]
    assert runs[0] == runs[1]
    with refuses(Conflict):
        await start(engine.database, engine.catalog, snapshot, [b"{}"], options)
    assert await stage.value("select count(*) from holdfast.run") == 1
