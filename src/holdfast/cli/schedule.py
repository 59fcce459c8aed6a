"""`holdfast schedule …`: what fires when, what became of each slot, and hands on both."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.complete import action_names, schedule_names
from holdfast.cli.given import object_of
from holdfast.cli.shell import Shell, actor, the_shell
from holdfast.cli.show import Column, emit_json, emit_pairs, emit_rows
from holdfast.cli.tree import Group
from holdfast.cli.words import age, hue, moment, state_text
from holdfast.errors import Invalid

if TYPE_CHECKING:
    from holdfast.dispatcher.schedules import Fired, ScheduleDraft, ScheduleView, SlotView

SLOTS_SHOWN = 10


@click.group(cls=Group)
def schedule() -> None:
    """See, make, pause and fire schedules."""


@schedule.command()
@click.argument("name")
@click.option("--action", metavar="NAME", shell_complete=action_names, help="The action to run.")
@click.option("--flow", metavar="NAME", help="The flow to start, in its newest version.")
@click.option("--cron", metavar="TEXT", help="Minute, hour, day of month, month, day of week: '0 6 * * mon-fri'.")
@click.option("--every", metavar="DURATION", help="An interval instead of --cron: 10m.")
@click.option("--timezone", metavar="ZONE", default="UTC", show_default=True, help="Where --cron is read.")
@click.option(
    "--overlap",
    type=click.Choice(["skip", "queue", "replace", "allow"]),
    default="skip",
    show_default=True,
    help="While the previous firing is not over.",
)
@click.option(
    "--missed",
    type=click.Choice(["skip", "latest", "all"]),
    default="latest",
    show_default=True,
    help="For slots that passed while no scheduler ran.",
)
@click.option(
    "--max-waiting", type=int, default=10, show_default=True, help="How many slots --overlap queue lets wait."
)
@click.option("--input", "given", metavar="JSON", default="{}", help="The input: a JSON object, @FILE, or - for stdin.")
@click.option("--pass-time", is_flag=True, help="Add the slot's time to the input, as scheduled_for.")
@click.option("--queue", metavar="NAME", help="Another queue than the action's.")
@click.option("--priority", type=int, metavar="0-9", help="Lower goes first.")
def create(name: str, **options: Any) -> None:
    """Make a schedule for an action or a flow that workers know."""
    shell = the_shell()
    view = shell.run(_create(shell, _draft(name, **options)))
    if shell.is_json:
        emit_json(view)
        return
    click.echo(f"{name}\t{_next(view)}")


def _draft(
    name: str,
    *,
    action: str | None,
    flow: str | None,
    cron: str | None,
    every: str | None,
    timezone: str,
    overlap: str,
    missed: str,
    max_waiting: int,
    given: str,
    pass_time: bool,
    queue: str | None,
    priority: int | None,
) -> ScheduleDraft:
    from holdfast import wire
    from holdfast.core import limits
    from holdfast.core.schedule import Missed, Overlap
    from holdfast.cron import valid_interval
    from holdfast.dispatcher.schedules import ScheduleDraft, valid_draft

    if (action is None) == (flow is None):
        raise Invalid(
            "A schedule runs an action or a flow.", code="invalid_schedule", advice="Give --action or --flow."
        )
    if flow is not None and queue is not None:
        raise Invalid(
            "The nodes of a flow have their own queues.", code="invalid_schedule", advice="Leave out --queue."
        )
    draft = ScheduleDraft(
        name=name,
        origin=actor(),
        target=action or flow or "",
        is_flow=flow is not None,
        cron=cron,
        every_seconds=None if every is None else valid_interval(every),
        timezone=timezone,
        overlap=Overlap(overlap),
        missed=Missed(missed),
        max_waiting=max_waiting,
        queue=queue,
        priority=priority,
        input=wire.encode(object_of(given), bytes_max=limits.INPUT_BYTES_MAX, what="input"),
        wants_time=pass_time,
    )
    return valid_draft(draft)


async def _create(shell: Shell, draft: ScheduleDraft) -> ScheduleView:
    from holdfast.client.declared import declared_action
    from holdfast.core.bindings import accept_run_input
    from holdfast.dispatcher.schedules import create_schedule
    from holdfast.store.catalog import DEFAULT_TENANT_ID
    from holdfast.wire import decode

    async with shell.client() as client:
        engine = client.engine
        if draft.is_flow:
            snapshot = await engine.catalog.flows.newest(DEFAULT_TENANT_ID, draft.target)
            time = {"scheduled_for": ""} if draft.wants_time else {}
            accept_run_input(snapshot.plan.definition.inputs, decode(draft.input) | time)
        else:
            await declared_action(engine, draft.target)
        await create_schedule(engine.database, DEFAULT_TENANT_ID, draft)
        return await _read(engine.database, draft.name)


async def _read(database: Any, name: str) -> ScheduleView:
    from holdfast.dispatcher.schedules import find_schedule, list_schedules
    from holdfast.store.catalog import DEFAULT_TENANT_ID

    await find_schedule(database, DEFAULT_TENANT_ID, name)
    (view,) = await list_schedules(database, DEFAULT_TENANT_ID, name=name)
    return view


@schedule.command("list")
def list_() -> None:
    """List schedules: when they fire next, in their own zone and here, and how they stand."""
    shell = the_shell()
    emit_rows(shell, shell.run(_list(shell)), _columns(shell), empty="No schedules yet: holdfast schedule create")


async def _list(shell: Shell) -> list[ScheduleView]:
    from holdfast.dispatcher.schedules import list_schedules
    from holdfast.store.catalog import DEFAULT_TENANT_ID

    async with shell.client() as client:
        return await list_schedules(client.engine.database, DEFAULT_TENANT_ID)


def _columns(shell: Shell) -> list[Column[ScheduleView]]:
    return [
        Column(title="SCHEDULE", text=lambda row: row.name),
        Column(title="RUNS", text=lambda row: row.target),
        Column(title="WHEN", text=lambda row: row.when),
        Column(title="NEXT", text=_next, plain=lambda row: row.upcoming[0].isoformat() if row.upcoming else ""),
        Column(title="HERE", text=lambda row: _here(shell, row), plain=lambda row: _here(shell, row)),
        Column(
            title="LAST",
            text=lambda row: "–" if row.last is None else state_text(row.last.outcome or "forgotten"),
            plain=lambda row: None if row.last is None else row.last.outcome,
            hue=lambda row: "" if row.last is None else hue(row.last.outcome or ""),
        ),
        Column(
            title="WHY", text=lambda row: row.why, hue=lambda row: hue("paused") if row.paused else "", stretch=True
        ),
    ]


def _next(row: ScheduleView) -> str:
    """The next slot on the schedule's own clock."""
    return f"{_there(row.upcoming[0])} {row.timezone}" if row.upcoming else "–"


def _there(slot: datetime) -> str:
    return f"{slot:%a %Y-%m-%d %H:%M:%S}"


def _here(shell: Shell, row: ScheduleView) -> str:
    """The next slot on the clock of whoever reads this."""
    return moment(row.upcoming[0] if row.upcoming else None, utc=shell.utc)


@schedule.command()
@click.argument("name", shell_complete=schedule_names)
@click.option("--slots", type=click.IntRange(1, 1000), default=SLOTS_SHOWN, show_default=True, help="How many slots.")
def show(name: str, slots: int) -> None:
    """Show one schedule: how it stands, its next fire times, and what became of its newest slots."""
    shell = the_shell()
    view, found = shell.run(_show(shell, name, slots))
    if shell.is_json:
        import msgspec

        emit_json({**msgspec.to_builtins(view, builtin_types=(datetime,)), "slots": found})
        return
    emit_pairs(shell, _pairs(shell, view))
    if shell.is_table and found:
        click.echo()
        emit_rows(shell, found, _slot_columns(shell), empty="")


async def _show(shell: Shell, name: str, slots: int) -> tuple[ScheduleView, list[SlotView]]:
    from holdfast.dispatcher.schedules import list_slots
    from holdfast.store.catalog import DEFAULT_TENANT_ID

    async with shell.client() as client:
        database = client.engine.database
        return await _read(database, name), await list_slots(database, DEFAULT_TENANT_ID, name, limit=slots)


def _pairs(shell: Shell, view: ScheduleView) -> list[tuple[str, object]]:
    upcoming = [
        (f"next {number}", f"{_there(slot)} {view.timezone} · {moment(slot, utc=shell.utc)} here")
        for number, slot in enumerate(view.upcoming, start=1)
    ]
    return [
        ("schedule", view.name),
        ("why", view.why),
        (view.kind, view.target),
        ("when", f"{view.when} {view.timezone}"),
        *upcoming,
        ("overlap", f"{view.overlap}, at most {view.max_waiting} waiting" if view.overlap == "queue" else view.overlap),
        ("missed", view.missed),
        ("kept by", view.origin),
        ("paused", f"{view.paused_by}, {age(view.paused_at, view.at)}" if view.paused else "–"),
        ("trouble", view.trouble or "–"),
    ]


def _slot_columns(shell: Shell) -> list[Column[SlotView]]:
    return [
        Column(title="SLOT", text=lambda row: moment(row.slot, utc=shell.utc)),
        Column(title="SLOTS", text=lambda row: str(row.slots), right=True),
        Column(title="STATE", text=lambda row: state_text(row.state), hue=lambda row: hue(row.state)),
        Column(title="TASK OR RUN", text=lambda row: row.task_id or row.run_id or "–"),
        Column(title="OUTCOME", text=lambda row: row.outcome or "–", hue=lambda row: hue(row.outcome or "")),
        Column(title="BY", text=lambda row: row.by or "–"),
        Column(title="REASON", text=lambda row: row.reason or "–", stretch=True),
    ]


@schedule.command()
@click.argument("name", shell_complete=schedule_names)
@click.option("--reason", metavar="TEXT", default="", help="Why, for whoever wonders.")
def pause(name: str, reason: str) -> None:
    """Fire nothing of a schedule until it is resumed; what it fired goes on."""
    from holdfast.dispatcher import schedules

    shell = the_shell()
    is_changed = shell.run(_steer(shell, schedules.pause, name, reason))
    _tell(shell, name, "paused" if is_changed else "paused already", paused=True)


@schedule.command()
@click.argument("name", shell_complete=schedule_names)
@click.option("--reason", metavar="TEXT", default="", help="Why, for whoever wonders.")
def resume(name: str, reason: str) -> None:
    """Let a schedule fire again. Slots that came during the pause are not caught up with."""
    from holdfast.dispatcher import schedules

    shell = the_shell()
    is_changed = shell.run(_steer(shell, schedules.resume, name, reason))
    _tell(shell, name, "resumed" if is_changed else "was not paused", paused=False)


@schedule.command()
@click.argument("name", shell_complete=schedule_names)
@click.option("--reason", metavar="TEXT", default="", help="Why, for whoever wonders.")
def fire(name: str, reason: str) -> None:
    """Fire a schedule now, also a paused one. Its overlap policy holds."""
    from holdfast.dispatcher import schedules

    shell = the_shell()
    fired: Fired = shell.run(_steer(shell, schedules.fire, name, reason))
    if shell.is_json:
        emit_json(fired)
        return
    click.echo("\t".join((name, fired.state, fired.task_id or fired.run_id or "")))
    if fired.reason and fired.task_id is None and fired.run_id is None:
        shell.talk(fired.reason)


@schedule.command()
@click.argument("name", shell_complete=schedule_names)
@click.option("--reason", metavar="TEXT", default="", help="Why, for whoever wonders.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(name: str, reason: str, yes: bool) -> None:
    """Forget a schedule and its slots; what it fired stays. An app that still declares it brings it back."""
    from holdfast.dispatcher import schedules

    shell = the_shell()
    shell.confirm(f"Delete the schedule {name}?", yes=yes)
    shell.run(_steer(shell, schedules.delete_schedule, name, reason))
    if shell.is_json:
        emit_json({"name": name, "deleted": True})
        return
    click.echo(f"{name}\tdeleted")


async def _steer(shell: Shell, verb: Any, name: str, reason: str) -> Any:
    from holdfast.store.catalog import DEFAULT_TENANT_ID

    async with shell.client() as client:
        return await verb(client.engine, DEFAULT_TENANT_ID, name, actor=actor(), reason=reason)


def _tell(shell: Shell, name: str, word: str, *, paused: bool) -> None:
    if shell.is_json:
        emit_json({"name": name, "paused": paused})
        return
    click.echo(f"{name}\t{word}")
