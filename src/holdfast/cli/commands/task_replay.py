"""`holdfast task replay`: run a task's input on this machine, and compare with how it ended."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.ui.command_tree import Command
from holdfast.cli.ui.completions import task_ids
from holdfast.cli.ui.output import emit_json
from holdfast.cli.ui.shell import FAILED, OK, Shell, the_shell
from holdfast.cli.ui.words import state_text, strip_control_chars
from holdfast.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.authoring.app import App
    from holdfast.client.replay import Replay, Replayed
    from holdfast.core.tasks.replay import Receipt


@click.command(cls=Command)
@click.argument("task_id", shell_complete=task_ids)
@click.option("--app", "app_ref", metavar="APP", default="", help="The code: `module:app` or `file.py:app`.")
@click.option(
    "--pack", "packs", multiple=True, metavar="FOLDER", help="Take the code from this pack; may be combined with --app."
)
@click.option("--attempt", type=click.IntRange(1), help="Compare with this attempt.  [default: the last that failed]")
@click.option(
    "--effect",
    "effects",
    multiple=True,
    metavar="NAME=JSON",
    help="Receipt of an effect that has none on record (NAME:KEY for one of several); the effect is never sent.",
)
@click.option("--send", "sends", is_flag=True, help="Execute an action of the runtime http or shell for real.")
@click.option("--run-steps", "runs_steps", is_flag=True, help="Call steps again, even if their results are on record.")
@click.option("--debug", is_flag=True, help="Open pdb where the code fails.")
def replay(
    task_id: str,
    app_ref: str,
    packs: tuple[str, ...],
    attempt: int | None,
    effects: tuple[str, ...],
    sends: bool,
    runs_steps: bool,
    debug: bool,
) -> None:
    """Run the input of a task here, in this process, and compare with how the attempt ended.

    The original is not touched: nothing is claimed and nothing is written. Effects are not sent: effects and steps
    return what is recorded. An action that is itself a request or a command (runtime http or shell) runs only with
    --send. `breakpoint()` in the code works; there is no time limit. Where stdout is not a terminal, what the code
    prints goes to stderr. Exit code 0 if the replay completed, 1 if it failed.
    """
    shell = the_shell()
    answers = dict(_answer(text) for text in effects)
    if not app_ref and not packs:
        raise click.UsageError("Name the code: --app module:app, or --pack FOLDER.")
    app = shell.load_app(app_ref, packs)
    prepared = _prepare(shell, app, task_id, attempt, answers, sends=sends, runs_steps=runs_steps)
    if not shell.is_json:
        shell.talk(f"Replaying task {task_id} with input {strip_control_chars(_json(prepared.input))}")
    # A debugger needs the real stdout.
    with nullcontext() if debug else shell.aside():
        done = prepared.run_here(debug=debug)
    if shell.is_json:
        emit_json(done)
    else:
        _print(shell, done)
    if debug and done.failure is None:
        shell.talk("Nothing failed. Put breakpoint() into the code to stop in it.")
    raise SystemExit(OK if done.failure is None else FAILED)


def _prepare(
    shell: Shell, app: App, task_id: str, attempt: int | None, effects: dict[str, Any], *, sends: bool, runs_steps: bool
) -> Replay:
    from holdfast.client.client import Client
    from holdfast.client.replay import Replay
    from holdfast.operations.snapshots import ReadSnapshot, captured_of, snapshot_task

    captured = captured_of(shell.ask(snapshot_task, ReadSnapshot(task_id=task_id, attempt=attempt)))

    async def find_receipts(effect: str, key: str) -> Sequence[Receipt]:
        async with shell.operation_client() as operation_client:
            return captured_of(
                await operation_client.ask(snapshot_task, ReadSnapshot(task_id=task_id, effect=effect, key=key))
            ).receipts

    settings = shell.settings()
    action = Client(settings, app.actions).action(captured.lane.action)
    return Replay(
        action,
        captured,
        effects=effects,
        datasets=app.datasets,
        sends=sends,
        runs_steps=runs_steps,
        find_receipts=find_receipts,
        output_bytes_max=settings.limits.output_bytes_max,
    )


def _print(shell: Shell, done: Replayed) -> None:
    for kind, detail in done.notes:
        shell.talk(f"{kind}  {strip_control_chars(_json(detail))}")
    if done.failure is None:
        click.echo(_json(done.output))
    else:
        name = strip_control_chars(done.failure.type or done.failure.code)
        click.echo(f"{name}: {strip_control_chars(done.failure.message)}")
        if done.failure.traceback:
            shell.talk(strip_control_chars(done.failure.traceback).rstrip())
    shell.talk(f"{state_text(done.state)}  {strip_control_chars(done.comparison.sentence)}")


def _answer(text: str) -> tuple[str, Any]:
    import msgspec

    name, equals, value = text.partition("=")
    try:
        if not (name and equals):
            raise ValueError("the name or the value is missing")
        return name, msgspec.json.decode(value)
    except ValueError as error:
        raise Invalid(
            f"--effect {text[:80]!r} cannot be used: {error}.",
            code="invalid_effect",
            advice="""Write for example --effect 'smtp.send={"id": "m1"}'.""",
        ) from error


def _json(value: Any) -> str:
    import msgspec

    return msgspec.json.encode(value, enc_hook=str).decode()
