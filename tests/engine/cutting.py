"""A process that dies while it delivers events, at every statement in turn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from tests.engine.test_observe import until_settled

from holdfast.engine.engine import Engine
from holdfast.engine.webhooks.deliver import LEASE_SECONDS, deliver_webhooks_once
from holdfast.errors import Unavailable
from holdfast.net.guarded_request import Guarded
from holdfast.testing.clock import DatabaseClock
from holdfast.testing.engine_harness import EngineHarness
from holdfast.testing.factories import a_completed_task


class Cut:
    """Cuts the connection at the n-th statement of a delivery, before it leaves or before its answer comes."""

    def __init__(self, number, moment):
        self.left = number
        self.moment = moment

    def before(self, statement):
        if "webhook" in statement or "read_events" in statement or "event_places" in statement:
            self.left -= 1
            self._strike("before")

    def after(self, _statement):
        self._strike("after")

    def _strike(self, moment):
        if self.left == 0 and moment == self.moment:
            self.left = -1
            raise ConnectionResetError("cut")


async def check_wherever_it_dies(
    engine: Engine,
    harness: EngineHarness,
    clock: DatabaseClock,
    moment: str,
    network: Guarded | None,
    arrived: Callable[[], list[tuple[str, str]]],
) -> None:
    """Cut off a delivery at its first statement, at its second, until it has no more; another goes on each time.

    `arrived` tells the ids and kinds of what has arrived since it was last asked.
    """
    struck = 0
    while True:
        await a_completed_task(harness)
        await clock.advance(seconds=1)
        await until_settled(harness)
        cut = Cut(struck + 1, moment)
        async with Engine(engine.database.url, engine.settings, tap=cut) as dying:
            with contextlib.suppress(Unavailable):
                await deliver_webhooks_once(dying, network)
        if cut.left > 0:
            break
        struck += 1
        await clock.advance(seconds=LEASE_SECONDS)
        await deliver_webhooks_once(engine, network)
        found = arrived()
        assert [kind for _, kind in dict.fromkeys(found)] == ["task.started", "task.completed"]
        assert len(found) <= 3, "more than one event was repeated"
    assert struck >= 6, "lease, read, place, two advances, release"
