"""`holdfast dead …`: dead letters by group; re-drive, dismiss, delete or export them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.commands.campaign import repeated, tell_plan
from holdfast.cli.commands.effect import effect_line, tell_repeats, tell_undone, undoing
from holdfast.cli.ui.command_tree import Group
from holdfast.cli.ui.completions import fingerprints, task_ids
from holdfast.cli.ui.output import Column, emit_json, emit_pairs, emit_rows, state_column
from holdfast.cli.ui.shell import Shell, the_shell
from holdfast.cli.ui.words import age, compact, counted, hue, moment, state_text, strip_control_chars
from holdfast.core.dead_letters.dead_letter import DISPATCHES_MAX, dispatch_backoff_seconds
from holdfast.core.values.bounds import required_reason
from holdfast.errors import Invalid, NotFound

if TYPE_CHECKING:
    from holdfast.engine.queries.dead_letters import DeadLetterView, GroupView


@click.group(cls=Group)
def dead() -> None:
    """List, re-drive and dismiss dead letters."""


@dead.command()
def groups() -> None:
    """List unresolved dead letters by group, the largest group first.

    A group has one fault: an exception's type, its message without ids and numbers, and the innermost frame of your own
    code. A task that failed again counts once.
    """
    from holdfast.operations.dead_letters import ListGroups, list_groups

    shell = the_shell()
    rows = shell.ask(list_groups, ListGroups()).groups
    emit_rows(shell, rows, _group_columns(), empty="No unresolved dead letters.")
    if rows and shell.is_table:
        shell.talk(f"Run one again: holdfast dead redrive --group {rows[0].fingerprint} --reason TEXT")


def _group_columns() -> list[Column[GroupView]]:
    return [
        Column(title="GROUP", text=lambda row: row.fingerprint),
        Column(
            title="TASKS",
            text=lambda row: compact(row.count, is_partial=row.is_partial),
            plain=lambda row: row.count,
            right=True,
        ),
        Column(
            title="FIRST",
            text=lambda row: age(row.first_seen),
            plain=lambda row: row.first_seen.isoformat(),
            optional=True,
        ),
        Column(
            title="LAST",
            text=lambda row: age(row.last_seen),
            plain=lambda row: row.last_seen.isoformat(),
            optional=True,
        ),
        Column(title="QUEUES", text=lambda row: ", ".join(row.queues), shrinks=True, optional=True),
        Column(title="ACTIONS", text=lambda row: ", ".join(row.actions), shrinks=True),
        Column(title="FAULT", text=_fault, stretch=True),
    ]


def _fault(row: GroupView | DeadLetterView) -> str:
    name = row.type.rpartition(".")[2] or row.code
    return f"{name}: {row.message}" if row.message else name


@dead.command("list")
@click.option("--group", "fingerprint", metavar="FP", help="Only this group.", shell_complete=fingerprints)
@click.option("--task", "task_id", metavar="ID", help="Only dead letters of this task.", shell_complete=task_ids)
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only these states.  [default: unresolved]")
@click.option("--all", "everything", is_flag=True, help="Include resolved and ignored dead letters.")
@click.option("--since", metavar="WHEN", help="Only since then: a duration before now (2h), or a time.")
@click.option("--limit", type=int, default=50, show_default=True, help="At most this many.")
@click.option(
    "--before", metavar="LETTER_ID", help="Only dead letters before this one: the last id of the previous page."
)
def list_(states: tuple[str, ...], everything: bool, before: str | None, **filters: Any) -> None:
    """List dead letters, newest first."""
    from holdfast.operations.dead_letters import ListDeadLetters, list_letters

    shell = the_shell()
    request = ListDeadLetters(state=list(states), everything=everything, before=before, **filters)
    rows, following = shell.ask_enough(list_letters, request, lambda page: page.letters)
    emit_rows(shell, rows, _letter_columns(), empty="No dead letters match.")
    if shell.is_table and following is not None:
        shell.talk(f"More: --before {following}")


def _letter_columns() -> list[Column[DeadLetterView]]:
    return [
        Column(title="LETTER", text=lambda row: row.dead_letter_id),
        Column(title="TASK", text=lambda row: row.task_id),
        state_column(),
        Column(title="GROUP", text=lambda row: row.fingerprint, optional=True),
        Column(title="ACTION", text=lambda row: row.action, shrinks=True),
        Column(title="QUEUE", text=lambda row: row.queue),
        Column(title="ATTEMPTS", text=lambda row: str(row.attempts), right=True, optional=True),
        Column(title="DISPATCHED", text=lambda row: str(row.dispatches), right=True, optional=True),
        Column(
            title="OPENED",
            text=lambda row: age(row.opened_at, row.at),
            plain=lambda row: row.opened_at.isoformat(),
            optional=True,
        ),
        Column(title="FAULT", text=_fault, stretch=True),
    ]


def _source(dead_letter: DeadLetterView) -> str:
    """Return what failed: the task, or the effect that ended it."""
    if dead_letter.source_type == "task":
        return f"task {dead_letter.source_id}"
    names = [effect.effect for effect in dead_letter.effects if effect.idempotency_key == dead_letter.source_id]
    return f"effect {names[0] if names else 'that another task sent since'}, under {dead_letter.source_id}"


@dead.command()
@click.argument("dead_letter_id", metavar="LETTER_ID")
def show(dead_letter_id: str) -> None:
    """Show one dead letter with its task's input and traceback."""
    from holdfast.operations.dead_letters import DeadLetterRequest, show_letter

    shell = the_shell()
    view = shell.ask(show_letter, DeadLetterRequest(dead_letter_id=dead_letter_id))
    if shell.is_json:
        emit_json(view)
        return
    pairs: list[tuple[str, object]] = [
        ("letter", view.dead_letter_id),
        ("state", state_text(view.state) if shell.is_table else view.state),
        ("task", view.task_id),
        ("action", view.action),
        ("queue", view.queue),
        ("group", view.fingerprint),
        ("fault", _fault(view)),
        ("class", f"{view.cause}, stopped because {view.reason}"),
        ("source", _source(view)),
        ("attempts", view.attempts),
        ("dispatched", f"{view.dispatches} of at most {view.dispatches_max} times" if view.dispatches else "never"),
        ("opened", moment(view.opened_at, utc=shell.utc)),
        ("may", ", ".join(view.recovery_options)),
    ]
    optional: list[tuple[str, object | None]] = [
        ("last", view.disposition and f"{view.disposition} by {view.actor}: {view.disposition_reason}"),
        ("at", view.disposition and moment(view.changed_at, utc=shell.utc)),
        ("run", view.run_id if view.run_id != view.task_id else None),
        ("previous", view.previous_id),
        ("campaign", view.campaign_id),
        ("tags", ", ".join(view.tags)),
        ("input", bytes(view.input).decode()),
    ]
    emit_pairs(shell, pairs + [(name, value) for name, value in optional if value], hues={"state": hue(view.state)})
    for effect in view.effects:
        shell.talk(effect_line(effect))
        if effect.compensation is not None and effect.compensated_by is None and effect.state != "refused":
            shell.talk(f"  Undo it: {undoing(effect)}")
    if view.traceback and shell.is_table:
        click.echo("\n".join(f"    │ {line}" for line in strip_control_chars(view.traceback).rstrip().splitlines()))


@dead.command()
@click.option(
    "--group",
    "fingerprint",
    metavar="FP",
    help="Every dead letter of this group, open or ignored.",
    shell_complete=fingerprints,
)
@click.option("--task", "task_id", metavar="ID", help="This task, and its run.", shell_complete=task_ids)
@click.option("--reason", metavar="TEXT", default="", help="Why the tasks will succeed now; required unless --dry-run.")
@click.option("--dry-run", is_flag=True, help="Show what would run and which effects may repeat, and change nothing.")
@click.option(
    "--dispatches",
    type=click.IntRange(1, DISPATCHES_MAX),
    default=DISPATCHES_MAX,
    show_default=True,
    help="Maximum number of dispatches of a task that keeps failing.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation before re-driving a group.")
def redrive(
    fingerprint: str | None, task_id: str | None, reason: str, dry_run: bool, dispatches: int, yes: bool
) -> None:
    """Run dead tasks again as new generations, with fresh retry budgets.

    A task returns to its queue at once, a group in the background. A task that fails for good again is dispatched again
    after 2, 4, 8 and 16 seconds, --dispatches times in all; then its dead letter is parked. To run a task exactly once
    more, use `holdfast task retry` or --dispatches 1; for many tasks prefer `holdfast campaign start`.
    """
    shell = the_shell()
    _one_of(fingerprint, task_id)
    if dry_run:
        _plan(shell, fingerprint, task_id)
        return
    required_reason(reason)
    shell.talk(_dispatching(dispatches))
    if fingerprint is not None:
        _require_group(shell, fingerprint)
        shell.confirm(f"Run every dead task of group {fingerprint} again?", yes=yes)
        _redrive_group(shell, fingerprint, reason, dispatches)
    elif task_id is not None:
        _redrive_task(shell, task_id, reason, dispatches)


def _dispatching(dispatches: int) -> str:
    """Return what a re-drive will do, printed before it starts."""
    if dispatches == 1:
        return "Dispatched once: if it fails for good again, it is parked for an operator."
    pauses = ", ".join(f"{dispatch_backoff_seconds(count):g}" for count in range(1, dispatches))
    return f"Dispatched up to {dispatches} times: now, and {pauses} s after each further failure for good."


def _redrive_task(shell: Shell, task_id: str, reason: str, dispatches: int) -> None:
    from holdfast.operations.dead_letters import RedriveTask, redrive_task

    done = shell.ask(redrive_task, RedriveTask(task_id=task_id, reason=reason, dispatches=dispatches))
    if shell.is_json:
        emit_json(done)
        return
    click.echo(f"{task_id}\tqueued")
    tell_repeats(shell, done.unknown_effects)
    tell_undone(shell, done.undone_effects)
    shell.talk(f"Queued as attempt {done.attempt}. Follow it: holdfast task watch {task_id}")


def _redrive_group(shell: Shell, fingerprint: str, reason: str, dispatches: int) -> None:
    from holdfast.operations.dead_letters import RedriveGroup, redrive_group

    done = shell.ask(redrive_group, RedriveGroup(fingerprint=fingerprint, reason=reason, dispatches=dispatches))
    if shell.is_json:
        emit_json(done)
        return
    click.echo(f"{fingerprint}\t{done.letters}")
    for effect in done.effects:
        shell.talk(f"effect {effect.name}: {repeated(effect)}")
    shell.talk(f"Requested a retry of {counted(done.letters, 'dead dead_letter')}. Follow them: holdfast dead groups")


def _plan(shell: Shell, fingerprint: str | None, task_id: str | None) -> None:
    """Print what a re-drive would do: for a group the plan of a campaign, for a task the effects that may repeat."""
    from holdfast.operations.campaigns import PlanCampaign, plan_campaign
    from holdfast.operations.dead_letters import PlanRedrive, plan_redrive

    if fingerprint is not None:
        tell_plan(shell, shell.ask(plan_campaign, PlanCampaign(fingerprint=fingerprint)))
        return
    plan = shell.ask(plan_redrive, PlanRedrive(task_id=str(task_id)))
    if shell.is_json:
        emit_json(plan)
        return
    unknown = plan.unknown_effects
    click.echo(f"{task_id}\t{len(unknown)}")
    tell_repeats(shell, unknown, is_dry=True)
    tell_undone(shell, plan.undone_effects)
    shell.talk(f"{counted(len(unknown), 'effect') if unknown else 'No effects'} of it may repeat.")


@dead.command()
@click.option(
    "--group", "fingerprint", metavar="FP", help="Every dead letter of this group.", shell_complete=fingerprints
)
@click.option("--task", "task_id", metavar="ID", help="The dead letters of this task.", shell_complete=task_ids)
@click.option("--reason", metavar="TEXT", required=True, help="Why no retry is needed; stored with the dead letter.")
@click.option("--abandon", is_flag=True, help="Also cancel the runs that it belongs to.")
@click.option("--resolved", is_flag=True, help="The problem was fixed by hand: mark it resolved instead of ignored.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation before dismissing a group.")
def ignore(fingerprint: str | None, task_id: str | None, reason: str, abandon: bool, resolved: bool, yes: bool) -> None:
    """Dismiss dead letters. A later `redrive` can still run them.

    Ignored dead letters are kept until they are deleted; resolved ones are deleted with history.
    """
    shell = the_shell()
    _one_of(fingerprint, task_id)
    if abandon and resolved:
        raise Invalid("--abandon and --resolved exclude each other.", code="invalid_option")
    from holdfast.operations.dead_letters import IgnoreGroup, IgnoreTask, ignore_group, ignore_task

    how: dict[str, Any] = {"reason": reason, "abandon": abandon, "resolved": resolved}
    if fingerprint is not None:
        _require_group(shell, fingerprint)
        shell.confirm(f"Dismiss every unresolved dead letter of group {fingerprint}?", yes=yes)
        done = shell.ask(ignore_group, IgnoreGroup(fingerprint=fingerprint, **how))
    else:
        done = shell.ask(ignore_task, IgnoreTask(task_id=str(task_id), **how))
    if shell.is_json:
        emit_json(done)
        return
    click.echo(f"{fingerprint or task_id}\t{done.disposition}\t{done.letters}")


@dead.command()
@click.option(
    "--group", "fingerprint", metavar="FP", help="Every dead task of this group.", shell_complete=fingerprints
)
@click.option(
    "--task",
    "task_id",
    metavar="ID",
    help="This task. If it belongs to a run, the complete run.",
    shell_complete=task_ids,
)
@click.option("--reason", metavar="TEXT", required=True, help="Why it is no longer needed; recorded in the audit log.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def delete(fingerprint: str | None, task_id: str | None, reason: str, yes: bool) -> None:
    """Delete what failed for good: the task with its input, attempts and dead letters. This cannot be undone.

    A node is deleted with its whole run, which must have ended. Failures that are not handled keep the history of their
    day.
    """
    from holdfast.operations.dead_letters import DeleteGroup, DeleteTask, delete_group, delete_task

    shell = the_shell()
    _one_of(fingerprint, task_id)
    required_reason(reason)
    if fingerprint is not None:
        _require_group(shell, fingerprint)
        shell.confirm(f"Delete every dead task of group {fingerprint}, for good?", yes=yes)
        done = shell.ask(delete_group, DeleteGroup(fingerprint=fingerprint, reason=reason))
    else:
        shell.confirm(f"Delete task {task_id}, for good?", yes=yes)
        done = shell.ask(delete_task, DeleteTask(task_id=str(task_id), reason=reason))
    if shell.is_json:
        emit_json(done)
        return
    click.echo(f"{fingerprint or task_id}\tdeleted\t{done.tasks}")
    if done.runs:
        shell.talk(f"{counted(done.runs, 'run')} deleted with them.")
    if done.left:
        shell.talk(f"{counted(done.left, 'task')} not deleted: their runs have not ended.")


@dead.command()
@click.option("--group", "fingerprint", metavar="FP", help="Only this group.", shell_complete=fingerprints)
@click.option("--all", "everything", is_flag=True, help="Include resolved and ignored dead letters.")
def export(fingerprint: str | None, everything: bool) -> None:
    """Write dead letters with their inputs to stdout, one JSON object per line, newest first."""
    shell = the_shell()
    count = shell.run(_export(shell, fingerprint, everything))
    shell.talk(f"Exported {counted(count, 'dead_letter')}.")


async def _export(shell: Shell, fingerprint: str | None, everything: bool) -> int:
    import msgspec

    from holdfast.operations.dead_letters import ExportDeadLetters, export_letters

    count, before = 0, None
    async with shell.operation_client() as operation_client:
        while True:
            request = ExportDeadLetters(fingerprint=fingerprint, everything=everything, before=before)
            page = await operation_client.ask(export_letters, request)
            for dead_letter in page.letters:
                click.echo(msgspec.json.encode(dead_letter).decode())
            count, before = count + len(page.letters), page.next
            if before is None:
                return count


def _require_group(shell: Shell, fingerprint: str) -> None:
    """Raise `NotFound` for an unknown group before asking for confirmation."""
    from holdfast.operations.dead_letters import ListDeadLetters, list_letters

    request = ListDeadLetters(everything=True, fingerprint=fingerprint, limit=1)
    if not shell.ask_enough(list_letters, request, lambda page: page.letters)[0]:
        raise NotFound(
            f"There is no group {fingerprint!r}.", code="group_not_found", advice="See `holdfast dead groups`."
        )


def _one_of(fingerprint: str | None, task_id: str | None) -> None:
    if (fingerprint is None) == (task_id is None):
        raise Invalid("Name a group or a task.", code="invalid_option", advice="Give --group FP or --task ID.")
