"""`holdfast task …`: submit, list, show, explain, retry and cancel; `task_follow` and `task_replay` have the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.commands.effect import effect_line, tell_repeats
from holdfast.cli.commands.task_follow import end_of, logs, wait, watch
from holdfast.cli.commands.task_replay import replay
from holdfast.cli.ui.command_tree import Group
from holdfast.cli.ui.completions import action_names, queue_names, task_ids
from holdfast.cli.ui.explanation import emit_why
from holdfast.cli.ui.for_each_id import for_each_id
from holdfast.cli.ui.input_option import object_of, pairs_of
from holdfast.cli.ui.output import Column, emit_json, emit_pairs, emit_rows, state_column
from holdfast.cli.ui.shell import OK, Shell, actor, all_of, the_shell
from holdfast.cli.ui.words import age, hue, icon, lasted, moment, state_text, strip_control_chars
from holdfast.errors import Invalid

if TYPE_CHECKING:
    from holdfast.engine.effects.gate import EffectView
    from holdfast.engine.queries.task_detail import TaskView
    from holdfast.engine.queries.tasks import TaskRow
    from holdfast.operations.client import OperationClient
    from holdfast.operations.effects import EffectPage
    from holdfast.operations.submit import CopyTask, SubmitTask, Submitted


@click.group(cls=Group)
def task() -> None:
    """Submit, follow and control tasks."""


task.add_command(watch)
task.add_command(wait)
task.add_command(logs)
task.add_command(replay)


@task.command()
@click.argument("action", required=False, shell_complete=action_names)
@click.argument("pairs", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--input", "given", metavar="JSON", default="{}", help="The input: a JSON object, @FILE, or - for stdin.")
@click.option(
    "--copy-of",
    metavar="TASK_ID",
    help="Copy the arguments of that task; options given here override them.",
    shell_complete=task_ids,
)
@click.option("--queue", metavar="NAME", help="Another queue than the action's own.", shell_complete=queue_names)
@click.option("--key", metavar="TEXT", help="Idempotency key: the same key and input give the same task.")
@click.option("--delay", metavar="DURATION", help='Start later, as "30s" or "2h".')
@click.option("--priority", type=int, metavar="0-9", help="0 first, 9 last; 5 unless the action says otherwise.")
@click.option("--tag", "tags", multiple=True, metavar="TEXT", help="Tag it; repeat for more.")
@click.option("--app", "app_ref", metavar="APP", help="Take the action from this app instead of what workers declared.")
@click.option("--wait", "waits", is_flag=True, help="Wait for the end, print the output, exit with the outcome.")
@click.option("--timeout", metavar="DURATION", help="With --wait: give up waiting after this long.")
def submit(
    action: str | None,
    pairs: tuple[str, ...],
    given: str,
    copy_of: str | None,
    app_ref: str | None,
    waits: bool,
    timeout: str | None,
    **options: Any,
) -> None:
    """Enqueue one task and print its id.

    Input is given as key=value (a value that is valid JSON is decoded, any other is text), by --input, or both. Queue
    and retry policy are those that a worker declared for ACTION, or those of --app. A copy (--copy-of) has those of its
    original, whose input is changed by what is given here; `task show` names the original.
    """
    from holdfast.operations.submit import CopyTask, SubmitTask

    shell = the_shell()
    if copy_of is not None and action is not None and "=" in action:
        pairs, action = (action, *pairs), None
    if (action is None) == (copy_of is None) or (copy_of is not None and app_ref is not None):
        raise Invalid(
            "Name an action, or a task to copy without --app.",
            code="invalid_submit",
            advice="Write `holdfast task submit ACTION` or `holdfast task submit --copy-of TASK_ID`.",
        )
    said = {"input": {**object_of(given), **pairs_of(pairs)}, "tags": list(options.pop("tags")), **options}
    request = CopyTask(task_id=copy_of, **said) if copy_of is not None else SubmitTask(action=str(action), **said)
    raise SystemExit(shell.run(_submit(shell, request, app_ref, waits, timeout)))


async def _submit(
    shell: Shell, request: SubmitTask | CopyTask, app_ref: str | None, waits: bool, timeout: str | None
) -> int:
    from holdfast.operations.retrying_client import RetryingClient
    from holdfast.operations.submit import CopyTask, copy_task, submit_task

    async with _operation_client_for(shell, app_ref) as operation_client:
        if isinstance(request, CopyTask):
            done = await operation_client.ask(copy_task, request)
        elif app_ref is None:
            done = await operation_client.ask(submit_task, request)
        else:
            done = await _submit_app_action(operation_client, request)
        if not waits:
            _tell_submitted(shell, done)
            return OK
        shell.talk(f"Submitted {done.action} as {done.task_id}; waiting for its end.")
        return await end_of(
            shell, RetryingClient(operation_client, shell.talk, timeout, has_answered=True), done.task_id, timeout
        )


def _operation_client_for(shell: Shell, app_ref: str | None) -> OperationClient:
    """Return the operation client. With --app it knows the app's actions, which needs direct database access."""
    if app_ref is None:
        return shell.operation_client()
    from holdfast.authoring.app_settings import settings_for
    from holdfast.operations.client import LocalClient

    app = shell.load_app(app_ref)
    app.configure(settings_for(app.own_settings, shell.settings()))
    return LocalClient(app.client(), actor())


async def _submit_app_action(operation_client: Any, request: SubmitTask) -> Submitted:
    from holdfast.operations.submit import submit_action

    return await submit_action(operation_client.client, operation_client.client.action(request.action), request)


def _tell_submitted(shell: Shell, done: Submitted) -> None:
    if shell.is_json:
        emit_json(done)
        return
    click.echo(done.task_id)
    stands = "" if done.state == "queued" else f"; it is {done.state}"
    shell.talk(f"Submitted {done.action} to queue {done.queue}{stands}. Follow it: holdfast task watch {done.task_id}")


@task.command("list")
@click.option(
    "--state", "states", multiple=True, metavar="STATE", help="Only these: queued, delayed, running, retrying, failed …"
)
@click.option("--queue", metavar="NAME", help="Only this queue.", shell_complete=queue_names)
@click.option("--action", metavar="NAME", help="Only this action.", shell_complete=action_names)
@click.option("--tag", metavar="TEXT", help="Only tasks with this tag.")
@click.option("--since", metavar="WHEN", help="Only since then: a duration before now (2h), or a time.")
@click.option("--limit", type=int, default=50, show_default=True, help="At most this many.")
@click.option("--before", metavar="PLACE", help="Continue after the previous page, which prints this value.")
def list_(states: tuple[str, ...], before: str | None, **filters: Any) -> None:
    """List tasks, newest first.

    `--state failed` means failed for good; `retrying` means failed with a retry to come. `delayed` tasks are queued and
    not due yet; their state in JSON is queued.
    """
    from holdfast.operations.tasks import ListTasks, list_tasks

    shell = the_shell()
    wanted = [part for state in states for part in state.split(",") if part]
    rows, following = shell.ask_enough(
        list_tasks, ListTasks(state=wanted, before=before, **filters), lambda page: page.tasks
    )
    named = {"state": ", ".join(wanted), **{name: filters[name] for name in ("queue", "action", "tag")}}
    request = ", ".join(f"{name} {value}" for name, value in named.items() if value)
    emit_rows(shell, rows, _columns(), empty=f"No tasks match {request}." if request else "No tasks yet.")
    if shell.is_table and following is not None:
        shell.talk(f"More: --before {following}")


_TASKLESS_NODE_NOTES = {
    "map": "its items are tasks: holdfast run show {run}",
    "flow": "a run of {action}: holdfast run show {run}",
    "wait": "waits for {action}: holdfast run waiting",
}
"""Nodes that no worker runs, and the command that shows more about them."""


def _columns() -> list[Column[TaskRow]]:
    return [
        Column(title="TASK", text=lambda row: row.task_id),
        state_column(lambda row: state_text(_shown_state(row))),
        Column(title="ACTION", text=lambda row: row.action, shrinks=True),
        Column(title="QUEUE", text=lambda row: row.queue),
        Column(title="ATTEMPT", text=_attempt, optional=True),
        Column(
            title="SUBMITTED",
            text=lambda row: age(row.created_at, row.at),
            plain=lambda row: row.created_at.isoformat(),
            optional=True,
        ),
        Column(title="TOOK", text=lambda row: lasted(row.started_at, row.ended_at or row.at), optional=True),
        Column(title="NOTE", text=_note, stretch=True),
    ]


def _shown_state(row: TaskRow) -> str:
    if row.kind == "wait" and row.state == "running":
        return "waiting"
    return "delayed" if row.state == "queued" and row.due_at is not None else row.state


def _attempt(row: TaskRow) -> str:
    """Return for example `2/4`. Nodes that stand for other tasks, or only wait, have no attempts."""
    return "–" if row.kind in _TASKLESS_NODE_NOTES else f"{row.attempt}/{row.max_attempts}"


def _note(row: TaskRow) -> str:
    """Return the most useful detail about this row."""
    if row.next_retry_at is not None:
        return f"next {age(row.next_retry_at, row.at)}: {row.error}"
    if row.state == "queued" and row.due_at is not None:
        return f"due {age(row.due_at, row.at)}"
    if row.state == "running" and row.kind in _TASKLESS_NODE_NOTES:
        return _TASKLESS_NODE_NOTES[row.kind].format(action=row.action, run=row.run_id)
    if row.state == "running":
        return f"on {row.worker or 'a worker being launched'}"
    return row.error or "" if row.state != "completed" else ""


@task.command()
@click.argument("task_id", shell_complete=task_ids)
def show(task_id: str) -> None:
    """Show one task with its input, output and attempts."""
    from holdfast.operations.tasks import OfTask, show_task

    shell = the_shell()
    view = shell.ask(show_task, OfTask(task_id=task_id))
    if shell.is_json:
        emit_json(view)
        return
    _print_task(shell, view)


def _attempt_of(view: TaskView) -> str:
    """Return the attempt's number and its limit, which counts failed attempts of one generation without losses."""
    if view.generation > 1:
        limit = f"generation {view.generation}, at most {view.max_attempts} failed attempts in each"
        return f"{view.attempt} ({limit})"
    if view.attempt > view.max_attempts:
        return f"{view.attempt} (at most {view.max_attempts} may fail; losses count separately)"
    return f"{view.attempt} of at most {view.max_attempts} (losses count separately)"


def _print_task(shell: Shell, view: TaskView) -> None:
    pairs: list[tuple[str, object]] = [
        ("task", view.task_id),
        ("action", view.action),
        ("queue", view.queue),
        ("state", state_text(view.state) if shell.is_table else view.state),
        ("attempt", _attempt_of(view)),
        ("priority", view.priority),
        ("submitted", moment(view.created_at, utc=shell.utc)),
    ]
    optional: list[tuple[str, object | None]] = [
        ("due", view.due_at and moment(view.due_at, utc=shell.utc)),
        ("next retry", view.next_retry_at and moment(view.next_retry_at, utc=shell.utc)),
        ("ended", view.ended_at and moment(view.ended_at, utc=shell.utc)),
        ("run", view.run_id),
        ("node", view.node if view.item is None else f"{view.node}, item {view.item}"),
        ("path", " / ".join(view.path) if view.run_id else None),
        ("tags", ", ".join(view.tags)),
        ("key", view.key),
        ("copy of", view.original_task_id),
        ("copies", ", ".join(view.copies)),
        ("letter", view.dead_letter),
        ("canceled by", view.canceled_by),
        ("because", view.cancel_reason),
        ("input", bytes(view.input).decode()),
        ("output", bytes(view.output).decode() if view.state == "completed" else None),
    ]
    emit_pairs(shell, pairs + [(name, value) for name, value in optional if value], hues={"state": hue(view.state)})
    for attempt in view.attempts:
        head = f"{icon(attempt.state)} attempt {attempt.attempt} {attempt.state} on {attempt.worker or 'no worker'}"
        took = lasted(attempt.started_at, attempt.ended_at)
        request = (
            ""
            if attempt.dispatched_at == attempt.started_at
            else f", requested {moment(attempt.dispatched_at, utc=shell.utc)}"
        )
        click.echo(f"{head}{request}, started {moment(attempt.started_at, utc=shell.utc)}, took {took}")
        if attempt.message is not None:
            click.echo(
                f"    {strip_control_chars(attempt.type or attempt.code)}: {strip_control_chars(attempt.message)}"
            )
            click.echo(f"    {strip_control_chars(attempt.sentence)} Class {attempt.failure_class}.")
        if attempt.traceback and shell.is_table:
            click.echo(
                "\n".join(f"    │ {line}" for line in strip_control_chars(attempt.traceback).rstrip().splitlines())
            )
    for effect in view.effects:
        click.echo(effect_line(effect))


@task.command()
@click.argument("task_id", shell_complete=task_ids)
def why(task_id: str) -> None:
    """Explain why a task is in its state, and what would change that."""
    from holdfast.operations.tasks import OfTask, why_task

    shell = the_shell()
    emit_why(shell, shell.ask(why_task, OfTask(task_id=task_id)))


@task.command()
@click.argument("task_id", shell_complete=task_ids)
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
def retry(task_id: str, reason: str) -> None:
    """Run a failed task again: a waiting retry now, or a task stopped with retries left as a new generation.

    A task that used up its retries is re-driven through its dead letter: `holdfast dead redrive --task ID`.
    """
    shell = the_shell()
    attempt, unknown = shell.run(_retry(shell, task_id, reason))
    body = {"task_id": task_id, "state": "queued", "attempt": attempt}
    body |= {"unknown_effects": unknown} if unknown else {}
    if shell.is_json:
        emit_json(body)
        return
    click.echo(f"{task_id}\tqueued")
    shell.talk(f"Queued as attempt {attempt}.")
    tell_repeats(shell, unknown)


async def _retry(shell: Shell, task_id: str, reason: str) -> tuple[int, list[EffectView]]:
    """Retry the task; return the attempt and the effects that may repeat, which the operator should know."""
    from holdfast.operations.effects import ListEffects, list_effects
    from holdfast.operations.tasks import SteerTask, retry_task

    async with shell.operation_client() as operation_client:
        unknown = await all_of(operation_client, list_effects, ListEffects(task_id=task_id, state="unknown"), _effects)
        return (await operation_client.ask(retry_task, SteerTask(task_id=task_id, reason=reason))).attempt, unknown


def _effects(page: EffectPage) -> list[EffectView]:
    """Return the effects that are sent again; compensated ones are not."""
    return [effect for effect in page.effects if effect.compensated_by is None]


@task.command()
@click.argument("task_ids", nargs=-1, required=True, shell_complete=task_ids)
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation before canceling several.")
def cancel(task_ids: tuple[str, ...], reason: str, yes: bool) -> None:
    """Cancel tasks: waiting ones at once, running ones are asked to stop first.

    With several tasks, a refusal does not stop the others; exit code 5 means that some were refused.
    """
    shell = the_shell()
    if len(task_ids) > 1:
        shell.confirm(f"Cancel {len(task_ids)} tasks?", yes=yes)
    raise SystemExit(shell.run(_cancel(shell, task_ids, reason)))


async def _cancel(shell: Shell, task_ids: tuple[str, ...], reason: str) -> int:
    from holdfast.operations.tasks import SteerTask, cancel_task

    async def steer(operation_client: OperationClient, task_id: str) -> str:
        return (await operation_client.ask(cancel_task, SteerTask(task_id=task_id, reason=reason))).state

    def talk(state: str) -> str:
        return (
            "Canceled."
            if state == "canceled"
            else "Stop requested; the attempt is stopped by force after its grace period."
        )

    return await for_each_id(shell, task_ids, steer, name="task_id", talk=talk)
