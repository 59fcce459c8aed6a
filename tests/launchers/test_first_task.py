"""A launched action needs no worker that declares it: there is none before the first launch."""

from __future__ import annotations

from dataclasses import replace

import pytest

import holdfast as hf
from holdfast.client.client import Client
from holdfast.engine.launching import launch as verbs

app = hf.App("studio")


@app.action(launcher="test", queue="video", priority=2)
def render(frame: int = 1) -> int:
    return frame


@app.action()
def ordinary() -> None: ...


@app.flow(version=1)
def film(frame: int) -> None:
    render(frame=frame)


@pytest.fixture
async def client(holdfast_url, holdfast_settings, engine):
    async with Client(replace(holdfast_settings, url=holdfast_url), app.actions, app.flows) as opened:
        yield opened


@pytest.mark.parametrize(
    "hand_in",
    [
        lambda client: client.enqueue(render, frame=1),
        lambda client: client.enqueue(render.options(key="k", queue="other"), frame=1),
        lambda client: client.enqueue_many(render, [{"frame": 1}]),
        lambda client: client.start(film, frame=1),
    ],
    ids=["enqueue", "with options", "many", "flow"],
)
async def test_the_first_task_of_a_launched_action_is_found_by_launchers(engine, client, hand_in):
    await hand_in(client)
    [found] = await verbs.find_launchable(engine.database)
    assert (found.action, found.launcher) == ("studio.render", "test")
    declared = await engine.catalog.declared(engine.tenant_id, "studio.render")
    assert declared == render.rules(engine.policy_defaults)


async def test_what_workers_declared_stands(engine, client):
    policy = render.policy(engine.policy_defaults)
    await engine.catalog.declare(1, "studio.render", "video", policy, "2", launcher="gpu")
    await client.enqueue(render, frame=1)
    await client.enqueue(ordinary)
    [found] = await verbs.find_launchable(engine.database)
    assert found.launcher == "gpu"
