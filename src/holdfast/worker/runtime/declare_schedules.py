"""Declaration of an app's schedules in the database when one of its workers starts.

A schedule that the code no longer declares stays until it is deleted; a paused schedule stays paused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.authoring.action import Action, BoundAction
from holdfast.authoring.flow.flow import BoundFlow
from holdfast.authoring.schedule import Schedule
from holdfast.codec import json_codec
from holdfast.core.flows.graph import FlowDefinition
from holdfast.engine.engine import Engine
from holdfast.engine.lifecycle.runs.flow_snapshots import snapshot_tree
from holdfast.engine.schedules.commands import ScheduleDraft, declare_schedule

log = logging.getLogger("holdfast.worker")


async def declare_schedules(
    engine: Engine, origin: str, schedules: Iterable[Schedule], actions: Mapping[str, Action[..., Any]]
) -> None:
    """Declare the schedules of `origin`. A schedule of the same name but another origin is left unchanged."""
    for schedule in schedules:
        draft = await _draft(engine, origin, schedule, actions)
        if not await declare_schedule(engine.database, engine.tenant_id, draft):
            log.warning("schedule %s was not created by an app; its declaration here is not used", schedule.name)


async def _draft(
    engine: Engine, origin: str, schedule: Schedule, actions: Mapping[str, Action[..., Any]]
) -> ScheduleDraft:
    target = schedule.target
    rules: dict[str, Any] = {}
    is_flow = not isinstance(target, Action | BoundAction)
    if isinstance(target, Action | BoundAction):
        bound = target.options() if isinstance(target, Action) else target
        name, options = bound.action.name, bound.options
        rules = {
            "queue": bound.action.queue if options.queue is None else options.queue,
            "policy_id": await engine.catalog.policy_id(engine.tenant_id, bound.policy(engine.policy_defaults)),
            "priority": bound.action.priority if options.priority is None else options.priority,
            "tags": options.tags,
        }
    else:
        if isinstance(target, BoundFlow):
            rules = {"priority": target.priority, "tags": target.tags, "max_active": target.concurrency}
            target = target.flow
        name = target.name
        await _store_flow(engine, target if isinstance(target, FlowDefinition) else target.definition, actions)
    return ScheduleDraft(
        name=schedule.name,
        origin=origin,
        target=name,
        is_flow=is_flow,
        cron=schedule.cron,
        every_seconds=schedule.every_seconds,
        timezone=schedule.timezone,
        overlap=schedule.overlap,
        missed=schedule.missed,
        max_waiting=schedule.max_waiting,
        input=json_codec.encode(schedule.input, bytes_max=engine.settings.limits.input_bytes_max, what="input"),
        wants_time=schedule.wants_time,
        **rules,
    )


async def _store_flow(engine: Engine, flow: FlowDefinition, actions: Mapping[str, Action[..., Any]]) -> None:
    """Store the flow as it would run now: schedulers start the newest stored version."""
    rules = {name: action.rules(engine.policy_defaults) for name, action in actions.items()}
    await snapshot_tree(engine.catalog, engine.tenant_id, flow.validated(), rules, {flow.name: flow}.get)
