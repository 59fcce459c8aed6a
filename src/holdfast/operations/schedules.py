"""Operations on schedules: create, list, show, pause, resume, fire and delete."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast.client.declared_actions import declared_action
from holdfast.codec import json_codec
from holdfast.codec.cron import valid_interval
from holdfast.core.flows.bindings import accept_run_input
from holdfast.core.identity.access import Access
from holdfast.core.schedules.schedule import Missed, Overlap
from holdfast.core.values import bounds
from holdfast.engine.queries import schedules
from holdfast.engine.queries.pages import valid_limit
from holdfast.engine.queries.schedules import ScheduleView, SlotView
from holdfast.engine.schedules import commands as schedule_commands
from holdfast.engine.schedules.commands import Fired, ScheduleDraft
from holdfast.errors import Invalid
from holdfast.operations.context import OperationContext
from holdfast.operations.operation import KeyUse, Request, operation
from holdfast.operations.paging import PAGE, Limit, next_of
from holdfast.operations.shared_types import ListNames, NameAndReason, Paused

SLOTS_SHOWN = 10
SLOTS_MAX = 1_000
CREATE_BYTES_MAX = bounds.INPUT_BYTES_MAX + 64 * 1024


class CreateSchedule(Request, frozen=True, kw_only=True):
    """A schedule of an action or a flow that workers declared, by `cron` or `every`."""

    name: str
    action: str | None = None
    flow: str | None = None
    cron: str | None = None
    every: str | None = None
    timezone: str = "UTC"
    overlap: Literal["skip", "queue", "replace", "allow"] = "skip"
    missed: Literal["skip", "latest", "all"] = "latest"
    max_waiting: int = schedule_commands.WAITING_DEFAULT
    input: dict[str, Any] = msgspec.field(default_factory=dict)
    pass_time: bool = False
    queue: str | None = None
    priority: int | None = None
    max_active: int | None = None
    reason: str = ""


class ListSchedules(ListNames, frozen=True, kw_only=True):
    """`after` is the `next` of the previous page. Pages are shorter than those of names, because rows are larger."""

    limit: Limit = PAGE


class SchedulePage(msgspec.Struct, frozen=True, kw_only=True):
    schedules: list[ScheduleView]
    next: str | None


class ShowSchedule(Request, frozen=True, kw_only=True):
    """A schedule, and how many of its newest slots to show."""

    name: str
    slots: int = SLOTS_SHOWN


class ScheduleShown(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule and its newest slots."""

    schedule: ScheduleView
    slots: list[SlotView]


class ScheduleDeleted(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    deleted: bool


@operation("schedule.create", "POST /api/v1/schedules", Access.OPERATOR, status=201, body_bytes_max=CREATE_BYTES_MAX)
async def create_schedule(context: OperationContext, request: CreateSchedule) -> ScheduleView:
    """Creates a schedule for an action or a flow that workers declared."""
    draft = _draft(context, request)
    engine = context.engine
    if draft.is_flow:
        snapshot = await engine.catalog.flows.newest(context.tenant_id, draft.target)
        slot = {"scheduled_for": ""} if draft.wants_time else {}
        accept_run_input(snapshot.plan.definition.inputs, request.input | slot)
    else:
        await declared_action(engine, draft.target)
    await schedule_commands.create_schedule(context.database, context.tenant_id, draft, reason=request.reason)
    return await _read(context, draft.name)


def _draft(context: OperationContext, request: CreateSchedule) -> ScheduleDraft:
    if (request.action is None) == (request.flow is None):
        raise Invalid(
            "A schedule runs an action or a flow.", code="invalid_schedule", advice="Give `action` or `flow`."
        )
    if request.flow is not None and request.queue is not None:
        raise Invalid(
            "The nodes of a flow have their own queues.", code="invalid_schedule", advice="Leave out `queue`."
        )
    draft = ScheduleDraft(
        name=request.name,
        origin=context.actor,
        target=request.action or request.flow or "",
        is_flow=request.flow is not None,
        cron=request.cron,
        every_seconds=None if request.every is None else valid_interval(request.every),
        timezone=request.timezone,
        overlap=Overlap(request.overlap),
        missed=Missed(request.missed),
        max_waiting=request.max_waiting,
        queue=request.queue,
        priority=request.priority,
        max_active=request.max_active,
        input=json_codec.encode(request.input, bytes_max=bounds.INPUT_BYTES_MAX, what="input"),
        wants_time=request.pass_time,
    )
    return schedule_commands.valid_draft(draft)


async def _read(context: OperationContext, name: str) -> ScheduleView:
    await schedules.find_schedule(context.database, context.tenant_id, name)
    (view,) = await schedules.list_schedules(context.database, context.tenant_id, name=name)
    return view


@operation("schedule.list", "GET /api/v1/schedules", Access.VIEWER)
async def list_schedules(context: OperationContext, request: ListSchedules) -> SchedulePage:
    """Lists schedules by name, with their next fire time and status."""
    limit = valid_limit(request.limit)
    rows = await schedules.list_schedules(context.database, context.tenant_id, after=request.after, limit=limit)
    return SchedulePage(schedules=rows, next=next_of(rows, limit, lambda row: row.name))


@operation("schedule.show", "GET /api/v1/schedules/{name}", Access.VIEWER)
async def show_schedule(context: OperationContext, request: ShowSchedule) -> ScheduleShown:
    """Shows one schedule and the outcomes of its newest slots."""
    if not 1 <= request.slots <= SLOTS_MAX:
        raise Invalid(f"Slots are shown from 1 to {SLOTS_MAX}, not {request.slots}.", code="invalid_limit")
    view = await _read(context, request.name)
    slots = await schedules.list_slots(context.database, context.tenant_id, request.name, limit=request.slots)
    return ScheduleShown(schedule=view, slots=slots)


@operation("schedule.pause", "POST /api/v1/schedules/{name}/pause", Access.OPERATOR)
async def pause_schedule(context: OperationContext, request: NameAndReason) -> Paused:
    """Pauses a schedule: it does not fire until it is resumed."""
    done = await schedule_commands.pause(
        context.engine, context.tenant_id, request.name, actor=context.actor, reason=request.reason
    )
    return Paused(name=request.name, paused=True, is_changed=done)


@operation("schedule.resume", "POST /api/v1/schedules/{name}/resume", Access.OPERATOR)
async def resume_schedule(context: OperationContext, request: NameAndReason) -> Paused:
    """Resumes a paused schedule."""
    done = await schedule_commands.resume(
        context.engine, context.tenant_id, request.name, actor=context.actor, reason=request.reason
    )
    return Paused(name=request.name, paused=False, is_changed=done)


@operation("schedule.fire", "POST /api/v1/schedules/{name}/fire", Access.OPERATOR, status=202, once=KeyUse.STORED)
async def fire_schedule(context: OperationContext, request: NameAndReason) -> Fired:
    """Fires a schedule now, even if it is paused."""
    return await schedule_commands.fire(
        context.engine, context.tenant_id, request.name, actor=context.actor, reason=request.reason, once=context.once
    )


@operation("schedule.delete", "DELETE /api/v1/schedules/{name}", Access.OPERATOR)
async def delete_schedule(context: OperationContext, request: NameAndReason) -> ScheduleDeleted:
    """Deletes a schedule and its slots; fired tasks and runs are kept."""
    await schedule_commands.delete_schedule(
        context.engine, context.tenant_id, request.name, actor=context.actor, reason=request.reason
    )
    return ScheduleDeleted(name=request.name, deleted=True)


OPERATIONS = (
    create_schedule,
    list_schedules,
    show_schedule,
    pause_schedule,
    resume_schedule,
    fire_schedule,
    delete_schedule,
)
