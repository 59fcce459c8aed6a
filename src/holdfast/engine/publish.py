"""Publish a committed change: notifications, and what follows from it in other runs.

Notify workers of lanes that got tasks, and waiting callers. Update the parents of runs that ended, retry child runs,
and deliver events that arrived before the wait for them. All of it may be lost with this process: the maintenance loops
do the same.
"""

from __future__ import annotations

from holdfast.engine.engine import Engine
from holdfast.engine.lifecycle.runs.children import answer_once, retry_children_once
from holdfast.engine.lifecycle.runs.signals import deliver_to_runs
from holdfast.engine.notifications import NO_NOTIFICATIONS, Notifications


async def publish_and_propagate(engine: Engine, notifications: Notifications) -> None:
    """Send notifications and process their consequences until there are no more."""
    engine.notifier.notify(lanes=notifications.lanes, done=notifications.awaited, stops=notifications.stops)
    while notifications.children or notifications.waits:
        following = NO_NOTIFICATIONS
        if notifications.children:
            following = await answer_once(engine.database, engine.catalog)
            following = following.and_(await retry_children_once(engine.database, engine.catalog))
        if notifications.waits:
            following = following.and_(await deliver_to_runs(engine.database, engine.catalog, notifications.waits))
        engine.notifier.notify(lanes=following.lanes, done=following.awaited, stops=following.stops)
        notifications = following
