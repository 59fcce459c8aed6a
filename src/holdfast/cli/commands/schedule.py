"""`holdfast schedule …`: schedules, the outcomes of their slots, and commands to change them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.ui.command_tree import Group
from holdfast.cli.ui.completions import action_names, schedule_names
from holdfast.cli.ui.input_option import object_of
from holdfast.cli.ui.output import Column, emit_json, emit_pairs, emit_rows, state_column
from holdfast.cli.ui.shell import Shell, the_shell
from holdfast.cli.ui.words import age, hue, moment, state_text

if TYPE_CHECKING:
    from holdfast.engine.queries.schedules import ScheduleView, SlotView

SLOTS_SHOWN = 10


@click.group(cls=Group)
def schedule() -> None:
    """List, create, pause and fire schedules."""


@schedule.command()
@click.argument("name")
@click.option("--action", metavar="NAME", shell_complete=action_names, help="The action to run.")
@click.option("--flow", metavar="NAME", help="The flow to start, in its newest version.")
@click.option("--cron", metavar="TEXT", help="Minute, hour, day of month, month, day of week: '0 6 * * mon-fri'.")
@click.option("--every", metavar="DURATION", help="An interval instead of --cron: 10m.")
@click.option("--timezone", metavar="ZONE", default="UTC", show_default=True, help="Time zone of --cron.")
@click.option(
    "--overlap",
    type=click.Choice(["skip", "queue", "replace", "allow"]),
    default="skip",
    show_default=True,
    help="What to do while the previous firing has not ended.",
)
@click.option(
    "--missed",
    type=click.Choice(["skip", "latest", "all"]),
    default="latest",
    show_default=True,
    help="What to do with slots that passed while no scheduler ran.",
)
@click.option(
    "--max-waiting",
    type=int,
    default=10,
    show_default=True,
    help="Maximum number of waiting slots with --overlap queue.",
)
@click.option("--input", "given", metavar="JSON", default="{}", help="The input: a JSON object, @FILE, or - for stdin.")
@click.option("--pass-time", is_flag=True, help="Add the slot's time to the input, as scheduled_for.")
@click.option("--queue", metavar="NAME", help="Another queue than the action's.")
@click.option("--priority", type=int, metavar="0-9", help="Lower goes first.")
@click.option(
    "--max-active",
    type=click.IntRange(1),
    metavar="N",
    help="At most N nodes of a run are active at once; a mapped list or a sub-flow counts as one.",
)
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
def create(name: str, **options: Any) -> None:
    """Create a schedule for an action or a flow that workers declared."""
    from holdfast.operations.schedules import CreateSchedule, create_schedule

    shell = the_shell()
    given = object_of(options.pop("given"))
    view = shell.ask(create_schedule, CreateSchedule(name=name, input=given, **options))
    if shell.is_json:
        emit_json(view)
        return
    click.echo(f"{name}\t{_next(view)}")


@schedule.command("list")
def list_() -> None:
    """List schedules: their next fire time, in their own zone and in local time, and their status."""
    from holdfast.operations.schedules import ListSchedules, list_schedules

    shell = the_shell()
    rows = shell.ask_all(list_schedules, ListSchedules(), lambda page: page.schedules)
    emit_rows(shell, rows, _columns(shell), empty="No schedules yet: holdfast schedule create")


def _columns(shell: Shell) -> list[Column[ScheduleView]]:
    return [
        Column(title="SCHEDULE", text=lambda row: row.name),
        Column(title="RUNS", text=lambda row: row.target, shrinks=True),
        Column(title="WHEN", text=lambda row: row.when, shrinks=True),
        Column(title="NEXT", text=_next, plain=lambda row: row.upcoming[0].isoformat() if row.upcoming else ""),
        Column(title="HERE", text=lambda row: _here(shell, row), plain=lambda row: _here(shell, row), optional=True),
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
    """Return the next slot in the schedule's time zone."""
    return f"{_there(row.upcoming[0])} {row.timezone}" if row.upcoming else "–"


def _there(slot: datetime) -> str:
    return f"{slot:%a %Y-%m-%d %H:%M:%S}"


def _here(shell: Shell, row: ScheduleView) -> str:
    """Return the next slot in local time."""
    return moment(row.upcoming[0] if row.upcoming else None, utc=shell.utc)


@schedule.command()
@click.argument("name", shell_complete=schedule_names)
@click.option(
    "--slots", type=click.IntRange(1, 1000), default=SLOTS_SHOWN, show_default=True, help="Number of slots to show."
)
def show(name: str, slots: int) -> None:
    """Show one schedule: its status, its next fire times, and the outcomes of its newest slots."""
    from holdfast.operations.schedules import ShowSchedule, show_schedule

    shell = the_shell()
    shown = shell.ask(show_schedule, ShowSchedule(name=name, slots=slots))
    view, found = shown.schedule, shown.slots
    if shell.is_json:
        import msgspec

        emit_json({**msgspec.to_builtins(view, builtin_types=(datetime,)), "slots": found})
        return
    emit_pairs(shell, _pairs(shell, view))
    if not found:
        return
    if shell.is_table:
        click.echo()
    emit_rows(shell, found, _slot_columns(shell), empty="")


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
        *([] if view.max_active is None else [("at once", f"{view.max_active} nodes of a run")]),
        ("kept by", view.origin),
        ("paused", f"{view.paused_by}, {age(view.paused_at, view.at)}" if view.paused else "–"),
        ("trouble", view.trouble or "–"),
    ]


def _slot_columns(shell: Shell) -> list[Column[SlotView]]:
    return [
        Column(title="SLOT", text=lambda row: moment(row.slot, utc=shell.utc), plain=lambda row: row.slot.isoformat()),
        Column(title="SLOTS", text=lambda row: str(row.slots), right=True, optional=True),
        state_column(),
        Column(
            title="TASK OR RUN",
            text=lambda row: row.task_id or row.run_id or "–",
            plain=lambda row: row.task_id or row.run_id,
        ),
        Column(
            title="OUTCOME",
            text=lambda row: row.outcome or "–",
            plain=lambda row: row.outcome,
            hue=lambda row: hue(row.outcome or ""),
        ),
        Column(title="BY", text=lambda row: row.by or "–", plain=lambda row: row.by, shrinks=True, optional=True),
        Column(title="REASON", text=lambda row: row.reason or "–", plain=lambda row: row.reason, stretch=True),
    ]


@schedule.command()
@click.argument("name", shell_complete=schedule_names)
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
def pause(name: str, reason: str) -> None:
    """Pause a schedule: it does not fire until it is resumed; what it fired continues."""
    from holdfast.operations.schedules import pause_schedule
    from holdfast.operations.shared_types import NameAndReason

    shell = the_shell()
    done = shell.ask(pause_schedule, NameAndReason(name=name, reason=reason))
    _tell(shell, name, "paused" if done.is_changed else "already paused", paused=True)


@schedule.command()
@click.argument("name", shell_complete=schedule_names)
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
def resume(name: str, reason: str) -> None:
    """Resume a schedule. Slots of the pause are not made up for."""
    from holdfast.operations.schedules import resume_schedule
    from holdfast.operations.shared_types import NameAndReason

    shell = the_shell()
    done = shell.ask(resume_schedule, NameAndReason(name=name, reason=reason))
    _tell(shell, name, "resumed" if done.is_changed else "was not paused", paused=False)


@schedule.command()
@click.argument("name", shell_complete=schedule_names)
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
def fire(name: str, reason: str) -> None:
    """Fire a schedule now, even if it is paused. Its overlap policy applies."""
    from holdfast.operations.schedules import fire_schedule
    from holdfast.operations.shared_types import NameAndReason

    shell = the_shell()
    fired = shell.ask(fire_schedule, NameAndReason(name=name, reason=reason))
    if shell.is_json:
        emit_json(fired)
        return
    click.echo("\t".join((name, fired.state, fired.task_id or fired.run_id or "")))
    if fired.reason and fired.task_id is None and fired.run_id is None:
        shell.talk(fired.reason)


@schedule.command()
@click.argument("name", shell_complete=schedule_names)
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def delete(name: str, reason: str, yes: bool) -> None:
    """Delete a schedule and its slots; fired tasks and runs are kept. An app that still declares it recreates it."""
    from holdfast.operations.schedules import delete_schedule
    from holdfast.operations.shared_types import NameAndReason

    shell = the_shell()
    shell.confirm(f"Delete the schedule {name}?", yes=yes)
    done = shell.ask(delete_schedule, NameAndReason(name=name, reason=reason))
    if shell.is_json:
        emit_json(done)
        return
    click.echo(f"{name}\tdeleted")


def _tell(shell: Shell, name: str, word: str, *, paused: bool) -> None:
    if shell.is_json:
        emit_json({"name": name, "paused": paused})
        return
    click.echo(f"{name}\t{word}")
