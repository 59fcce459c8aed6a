"""Schedules for tests, one step at a time, as `harness.schedules`. There is no logic here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.codec import json_codec
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.schedules.schedule import Missed, Overlap
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.queries.schedules import ScheduleView, SlotView, find_schedule, list_schedules, list_slots
from holdfast.engine.schedules import commands as schedule_commands
from holdfast.engine.schedules.commands import Fired, ScheduleDraft

if TYPE_CHECKING:
    from holdfast.testing.engine_harness import EngineHarness

ACTION = "shop.charge"
BYTES_MAX = 1024 * 1024


class Schedules:
    """The schedules of one engine. By default they fire `shop.charge` on every full hour of UTC."""

    def __init__(self, harness: EngineHarness) -> None:
        self._open_maintenance = harness
        self._engine = harness.engine

    async def keep(
        self,
        name: str = "hourly",
        *,
        action: str = ACTION,
        flow: FlowDefinition | None = None,
        overlap: str = Overlap.SKIP,
        missed: str = Missed.LATEST,
        input: dict[str, Any] | None = None,
        **fields: Any,
    ) -> str:
        """Store a schedule, after declaring what it runs."""
        if flow is None:
            self._open_maintenance.know(action)
            await self._engine.catalog.declare(
                self._engine.tenant_id, action, "default", RetryPolicy(max_retries=0), ""
            )
        else:
            await self._open_maintenance.runs.snapshot(flow)
        if "every_seconds" not in fields:
            fields = {"cron": "0 * * * *"} | fields
        draft = ScheduleDraft(
            name=name,
            origin=fields.pop("origin", "test"),
            target=action if flow is None else flow.name,
            is_flow=flow is not None,
            overlap=Overlap(overlap),
            missed=Missed(missed),
            input=json_codec.encode(input or {}, bytes_max=BYTES_MAX, what="input"),
            **fields,
        )
        await schedule_commands.create_schedule(self._engine.database, self._engine.tenant_id, draft)
        return name

    async def view(self, name: str = "hourly") -> ScheduleView:
        """Return the status of a schedule."""
        await find_schedule(self._engine.database, self._engine.tenant_id, name)
        (found,) = await list_schedules(self._engine.database, self._engine.tenant_id, name=name)
        return found

    async def slots(self, name: str = "hourly") -> list[SlotView]:
        """Return the outcomes of its slots, oldest first."""
        found = await list_slots(self._engine.database, self._engine.tenant_id, name, limit=1_000)
        return found[::-1]

    async def pause(self, name: str = "hourly", *, actor: str = "test", reason: str = "") -> bool:
        """Pause a schedule; return False if it was paused already."""
        return await schedule_commands.pause(self._engine, self._engine.tenant_id, name, actor=actor, reason=reason)

    async def resume(self, name: str = "hourly", *, actor: str = "test", reason: str = "") -> bool:
        """Resume a schedule; return False if it was not paused."""
        return await schedule_commands.resume(self._engine, self._engine.tenant_id, name, actor=actor, reason=reason)

    async def fire(self, name: str = "hourly", *, actor: str = "test", reason: str = "") -> Fired:
        """Fire a schedule manually."""
        return await schedule_commands.fire(self._engine, self._engine.tenant_id, name, actor=actor, reason=reason)

    async def delete(self, name: str = "hourly", *, actor: str = "test", reason: str = "") -> None:
        """Delete a schedule."""
        await schedule_commands.delete_schedule(self._engine, self._engine.tenant_id, name, actor=actor, reason=reason)
