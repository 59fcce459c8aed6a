"""A launching loop on a platform of the test's own, and tasks whose worker it launches."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.launchers import shop_app
from tests.launchers.platform import Fixed, Platform, profile

from holdfast.client.client import Client
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.launchers.loop import Launching
from holdfast.testing.factories import a_task

ACTION = "shop.charge"


@pytest.fixture
def platform():
    return Platform()


@pytest.fixture
def launching(engine, platform):
    """A loop with two slots; `again` makes another one, as after a restart or on another machine."""
    return Launching(engine, Fixed({"test": profile(platform)}))


@pytest.fixture
def queue_up(harness, engine):
    """Enqueue tasks of an action whose worker is launched."""

    async def queue_up(count=1, *, launcher="test", action=ACTION, **options):
        await engine.catalog.declare(1, action, "default", RetryPolicy(), "", launcher=launcher)
        made = [await harness.enqueue(a_task(action=action, **options)) for _ in range(count)]
        return [one.task_id for one in made]

    return queue_up


@pytest.fixture
def slots(engine):
    """The holders of slots, by task."""

    async def slots():
        rows = await engine.database.fetch(
            "select task_id from holdfast.launch_slot s where holdfast.is_slot_held(s) order by slot"
        )
        return [str(row[0]) for row in rows]

    return slots


@pytest.fixture
async def client(holdfast_url, holdfast_settings, engine):
    """Of the shop whose actions are launched, as their workers declared them."""
    for action in shop_app.app.actions.values():
        policy = action.policy(engine.policy_defaults)
        await engine.catalog.declare(1, action.name, action.queue, policy, "", launcher=action.launcher)
    async with Client(replace(holdfast_settings, url=holdfast_url), shop_app.app.actions, {}) as opened:
        yield opened


@pytest.fixture
def why(engine):
    from holdfast.engine.queries.explain_task import why_task

    async def why(task_id):
        return await why_task(engine.database, engine.catalog, 1, int(task_id))

    return why
