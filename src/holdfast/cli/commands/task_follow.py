"""Commands that follow tasks to their end: `watch`, `wait` and `logs`. The exit code is the outcome."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NoReturn

import click

from holdfast.cli.ui.command_tree import Command
from holdfast.cli.ui.completions import task_ids
from holdfast.cli.ui.live_display import run_with_display
from holdfast.cli.ui.output import emit_json
from holdfast.cli.ui.shell import FAILED, OK, TIMEOUT, Shell, the_shell
from holdfast.cli.ui.words import hue, state_text, strip_control_chars
from holdfast.core.tasks.progress_text import progress_text
from holdfast.core.tasks.states import TERMINAL
from holdfast.errors import WaitTimeout

if TYPE_CHECKING:
    from holdfast.engine.queries.task_detail import AttemptNote
    from holdfast.operations.client import OperationClient
    from holdfast.operations.explanation import ExplanationView
    from holdfast.operations.tasks import TaskEnding

LOOK_SECONDS = 0.5


@click.command(cls=Command)
@click.argument("task_id", shell_complete=task_ids)
@click.option("--timeout", metavar="DURATION", help="Give up watching after this long; exit code 6.")
def watch(task_id: str, timeout: str | None) -> None:
    """Follow one task until it ends, printing each change; exit with the outcome.

    During an outage of the database or the server it waits, reports that, and resumes.
    """
    shell = the_shell()
    raise SystemExit(shell.run(_watch(shell, task_id, timeout)))


async def _watch(shell: Shell, task_id: str, timeout: str | None) -> int:
    async with shell.retrying_client(timeout) as operation_client:
        await _why(operation_client, task_id)
        return await run_with_display(
            end_of(shell, operation_client, task_id, timeout), _publish_changes(shell, operation_client, task_id)
        )


async def _why(operation_client: OperationClient, task_id: str) -> ExplanationView:
    from holdfast.operations.tasks import OfTask, why_task

    return await operation_client.ask(why_task, OfTask(task_id=task_id))


async def _publish_changes(shell: Shell, operation_client: OperationClient, task_id: str) -> NoReturn:
    printed: tuple[str, str] | None = None
    while True:
        explanation = await _why(operation_client, task_id)
        attempt = explanation.headline if explanation.code in ("backoff", "queue_paused", "no_worker") else ""
        now = (explanation.code, attempt)
        if now != printed and explanation.state not in TERMINAL:
            head = click.style(state_text(explanation.state), fg=hue(explanation.state) or None)
            shell.talk(
                f"{datetime.now(UTC).astimezone():%H:%M:%S}  {head}  {strip_control_chars(explanation.headline)}"
            )
        printed = now
        await asyncio.sleep(LOOK_SECONDS)


@click.command(cls=Command)
@click.argument("task_ids", nargs=-1, required=True, shell_complete=task_ids)
@click.option("--timeout", metavar="DURATION", help="Give up waiting after this long; exit code 6.")
def wait(task_ids: tuple[str, ...], timeout: str | None) -> None:
    """Wait for tasks to end and print how; exit 0 only if all completed."""
    shell = the_shell()
    if len(task_ids) == 1:
        raise SystemExit(shell.run(_wait_one(shell, task_ids[0], timeout)))
    raise SystemExit(shell.run(_wait_all(shell, task_ids, timeout)))


async def _wait_one(shell: Shell, task_id: str, timeout: str | None) -> int:
    async with shell.retrying_client(timeout) as operation_client:
        return await end_of(shell, operation_client, task_id, timeout)


async def _wait_all(shell: Shell, task_ids: tuple[str, ...], timeout: str | None) -> int:
    from holdfast.operations.follow import ending_of
    from holdfast.operations.tasks import WAITING, TaskEnding

    async with shell.retrying_client(timeout) as operation_client:
        waits = [ending_of(operation_client, task_id, timeout) for task_id in task_ids]
        endings = await asyncio.gather(*waits, return_exceptions=True)
    known: list[TaskEnding] = []
    for task_id, found in zip(task_ids, endings, strict=True):
        if isinstance(found, BaseException) and not isinstance(found, WaitTimeout):
            raise found
        known.append(TaskEnding(task_id=task_id, state=WAITING) if isinstance(found, BaseException) else found)
    if shell.is_json:
        emit_json(known)
    else:
        for ending in known:
            click.echo(f"{ending.task_id}\t{ending.state}")
    if any(ending.state == WAITING for ending in known):
        return TIMEOUT
    return OK if all(ending.state == "completed" for ending in known) else FAILED


async def end_of(shell: Shell, operation_client: OperationClient, task_id: str, timeout: str | None) -> int:
    """Wait for one task, print how it ended and its output, and return the exit code."""
    from holdfast.operations.follow import ending_of

    ending: TaskEnding = await ending_of(operation_client, task_id, timeout)
    if shell.is_json:
        emit_json(ending)
    elif ending.state == "completed":
        click.echo(bytes(ending.output).decode())
        shell.talk(state_text("completed"))
    else:
        click.echo(ending.state)
        shell.talk(
            f"{state_text(ending.state)}  {strip_control_chars((await _why(operation_client, task_id)).headline)}"
        )
    return OK if ending.state == "completed" else FAILED


@click.command(cls=Command)
@click.argument("task_id", shell_complete=task_ids)
@click.option("--attempt", type=int, help="Only this attempt.")
@click.option("-f", "--follow", is_flag=True, help="Follow until the task ends.")
def logs(task_id: str, attempt: int | None, follow: bool) -> None:
    """Print the log lines and the progress of a task's attempts."""
    shell = the_shell()
    shell.run(_logs(shell, task_id, attempt, follow))


async def _logs(shell: Shell, task_id: str, attempt: int | None, follow: bool) -> None:
    from holdfast.operations.tasks import ReadLogs, read_logs

    notes: list[AttemptNote] = []
    after = None
    async with shell.retrying_client() if follow else shell.operation_client() as operation_client:
        while True:
            page = await operation_client.ask(read_logs, ReadLogs(task_id=task_id, attempt=attempt, after=after))
            notes, after = notes + page.notes, page.next
            if not shell.is_json:
                _print_notes(shell, page.notes)
            if not page.is_all:
                continue
            if page.state in TERMINAL or not follow:
                break
            await asyncio.sleep(LOOK_SECONDS)
    if shell.is_json:
        emit_json(notes)
    if not notes:
        shell.talk(f"Task {task_id} logged nothing.")


def _print_notes(shell: Shell, notes: list[AttemptNote]) -> None:
    for note in notes:
        is_progress = note.kind == "progress"
        text = progress_text(note.detail) if is_progress else str(note.detail.get("message", ""))
        printed = ("done", "total", "message") if is_progress else ("message",)
        rest = " ".join(f"{name}={value}" for name, value in note.detail.items() if name not in printed)
        stamp = f"{note.at.astimezone(UTC):%H:%M:%S.%f}" if shell.utc else f"{note.at.astimezone():%H:%M:%S.%f}"
        line = f"{stamp[:-3]}  #{note.attempt}  {text}{f'  {rest}' if rest else ''}"
        click.echo(strip_control_chars(line) if shell.is_table else strip_control_chars(line).replace("  ", "\t", 2))
