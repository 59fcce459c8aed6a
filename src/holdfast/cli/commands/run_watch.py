"""`holdfast run watch`: follow a run to its end. The exit code is the outcome.

On a terminal it shows a live screen: progress, nodes and the last events. Elsewhere it prints a line per event, with
the cursor that `--from` resumes after; in JSON one object per line. The last line is the outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, NoReturn

import click

from holdfast.cli.ui.command_tree import Command
from holdfast.cli.ui.completions import run_ids
from holdfast.cli.ui.live_display import run_with_display
from holdfast.cli.ui.output import emit_json
from holdfast.cli.ui.shell import FAILED, OK, Shell, the_shell
from holdfast.cli.ui.words import hue, lasted, one_line, state_text, strip_control_chars
from holdfast.core.flows.run_state import RUN_TERMINAL, RunState
from holdfast.errors import WaitTimeout

if TYPE_CHECKING:
    from holdfast.client.run_events import RunEvent
    from holdfast.engine.queries.runs import NodeView, RunView
    from holdfast.engine.queries.status import RunProgress
    from holdfast.operations.client import OperationClient

LOOK_SECONDS = 0.5
NODES_SHOWN_MAX = 15
NODES_READ_MAX = 200
"""The nodes of a larger run are not read repeatedly: its screen shows only the bar and the last events."""
EVENTS_SHOWN_MAX = 5
_BEGINNING = "0:0"
_FIRST = ("running", "retrying", "failed", "queued", "blocked", "upstream_failed", "skipped", "canceled", "completed")


@click.command(cls=Command)
@click.argument("run_id", shell_complete=run_ids)
@click.option("--from", "after", metavar="CURSOR", default=_BEGINNING, help="Only what happened after this cursor.")
@click.option("--timeout", metavar="DURATION", help="Give up watching after this long; exit code 6.")
def watch(run_id: str, after: str, timeout: str | None) -> None:
    """Follow one run until it ends, printing each change; exit with the outcome.

    Without a terminal each event is a line that begins with its cursor: --from resumes after it. During an outage of
    the database or the server it waits, reports that, and resumes.
    """
    shell = the_shell()
    raise SystemExit(shell.run(_watch(shell, run_id, after, timeout)))


async def _watch(shell: Shell, run_id: str, after: str, timeout: str | None) -> int:
    from holdfast.core.values.duration import seconds_of

    seconds = None if timeout is None else seconds_of(timeout)
    async with shell.retrying_client() as operation_client:
        progress = await _progress(operation_client, run_id)
        teller = _Screen(shell, operation_client, progress) if shell.is_table and sys.stdout.isatty() else _Lines(shell)
        try:
            async with asyncio.timeout(seconds), teller:
                progress = await run_with_display(_follow(operation_client, run_id, teller, after), teller.keep())
        except TimeoutError:
            raise WaitTimeout(
                f"Run {run_id} has not ended after {seconds:g} s.", advice=f"See `holdfast run why {run_id}`."
            ) from None
        await _tell_verdict(shell, operation_client, progress)
    return OK if progress.state == RunState.COMPLETED else FAILED


async def _progress(operation_client: OperationClient, run_id: str) -> RunProgress:
    from holdfast.operations.run_follow import run_progress
    from holdfast.operations.runs import OfRun

    return await operation_client.ask(run_progress, OfRun(run_id=run_id))


async def _show(operation_client: OperationClient, run_id: str) -> RunView:
    from holdfast.operations.runs import OfRun, show_run

    return await operation_client.ask(show_run, OfRun(run_id=run_id))


async def _headline(operation_client: OperationClient, run_id: str) -> str:
    from holdfast.operations.runs import ExplainRun, why_run

    return strip_control_chars((await operation_client.ask(why_run, ExplainRun(run_id=run_id))).headline)


async def _follow(operation_client: OperationClient, run_id: str, teller: _Lines | _Screen, after: str) -> RunProgress:
    """Report events until the run has ended; a run that was retried meanwhile is followed further."""
    from holdfast.operations.follow import events_of_run

    while True:
        async with contextlib.aclosing(events_of_run(operation_client, run_id, after)) as events:  # type: ignore[type-var]
            async for event in events:
                teller.tell(event)
                after = event.cursor
        progress = await _progress(operation_client, run_id)
        if progress.state in RUN_TERMINAL:
            return progress


async def _tell_verdict(shell: Shell, operation_client: OperationClient, view: RunProgress) -> None:
    if shell.is_json:
        import json

        click.echo(json.dumps({"run_id": view.run_id, "state": view.state}))
        return
    headline = await _headline(operation_client, view.run_id)
    if shell.is_table:
        word = click.style(state_text(view.state), fg=hue(view.state) or None, bold=True)
        click.echo(f"{word}  {headline}", color=shell.has_colour())
        return
    click.echo(f"{view.run_id}\t{view.state}")
    shell.talk(headline)


async def end_of_run(shell: Shell, operation_client: OperationClient, run_id: str, timeout: str | None) -> int:
    """Wait for one run, print how it ended and its output, and return the exit code."""
    from holdfast.operations import follow

    state = await follow.end_of_run(operation_client, run_id, timeout)
    if shell.is_json:
        emit_json({"run_id": run_id, "state": state, "output": (await _show(operation_client, run_id)).output})
    elif state == RunState.COMPLETED:
        click.echo(bytes((await _show(operation_client, run_id)).output).decode())
        shell.talk(state_text(state))
    else:
        click.echo(state)
        shell.talk(f"{state_text(state)}  {await _headline(operation_client, run_id)}")
    return OK if state == RunState.COMPLETED else FAILED


class _Lines:
    """Prints a line for each event on stdout."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def keep(self) -> NoReturn:
        """Wait forever: printed lines need no refresh."""
        await asyncio.get_running_loop().create_future()
        raise AssertionError("this future is never completed")

    def tell(self, event: RunEvent) -> None:
        if self._shell.is_json:
            import msgspec

            click.echo(msgspec.json.encode(event).decode())
        elif self._shell.is_table:
            click.echo(_line(event), color=self._shell.has_colour())
        else:
            parts = (event.cursor, event.at.isoformat(), event.kind, _where(event), str(event.attempt))
            click.echo("\t".join(map(one_line, parts)))


class _Screen:
    """A live screen on a terminal, redrawn while the run continues."""

    def __init__(self, shell: Shell, operation_client: OperationClient, progress: RunProgress) -> None:
        from rich.console import Console
        from rich.live import Live

        self._operation_client = operation_client
        self._view: RunProgress | RunView = progress
        self._recent: deque[RunEvent] = deque(maxlen=EVENTS_SHOWN_MAX)
        console = Console(no_color=not shell.has_colour(), highlight=False)
        self._live = Live(self._drawn(), console=console, auto_refresh=False, transient=True)

    async def __aenter__(self) -> None:
        self._live.start()

    async def __aexit__(self, *_: object) -> None:
        self._live.update(self._drawn(), refresh=True)
        self._live.stop()

    def tell(self, event: RunEvent) -> None:
        self._recent.append(event)

    async def keep(self) -> NoReturn:
        """Redraw the screen repeatedly."""
        render = _show if self._view.nodes <= NODES_READ_MAX else _progress
        while True:
            self._view = await render(self._operation_client, self._view.run_id)
            self._live.update(self._drawn(), refresh=True)
            await asyncio.sleep(LOOK_SECONDS)

    def _drawn(self) -> Any:
        return screen_of(self._view, list(self._recent))


def screen_of(view: RunProgress | RunView, recent: list[RunEvent]) -> Any:
    """Return the screen of a run: a bar, its nodes where they are known, active ones first, and the last events."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    over = view.nodes - view.pending
    took = lasted(view.created_at, view.ended_at or view.at)
    head = Text.assemble(
        (f"{strip_control_chars(view.flow)} v{view.version}  ", "bold"),
        (state_text(view.state), hue(view.state)),
        f"  {over}/{view.nodes}  {took}",
    )
    # The progress bar prints no newline.
    bar = Padding(ProgressBar(total=max(1, view.nodes), completed=over, width=40), 0)
    lines = [Text.from_ansi(_line(event)) for event in recent]
    return Group(head, bar, *_nodes_of(view), *lines)


def _nodes_of(view: RunProgress | RunView) -> tuple[Any, ...]:
    from rich.text import Text

    from holdfast.cli.commands.run import node_columns
    from holdfast.cli.ui.output import table_of
    from holdfast.engine.queries.runs import RunView

    if not isinstance(view, RunView):
        return (Text(f"{view.active} active, {view.failed} failed", style="dim"),)
    shown = sorted(view.tasks, key=_rank)[:NODES_SHOWN_MAX]
    hidden = len(view.tasks) - len(shown)
    return table_of(shown, node_columns(view)), Text(f"and {hidden} more nodes" if hidden else "", style="dim")


def _rank(node: NodeView) -> int:
    return _FIRST.index(node.state) if node.state in _FIRST else len(_FIRST)


def _line(event: RunEvent) -> str:
    """Return an event for people: `12:00:01  ✓ completed    extract  attempt 2`."""
    word = event.kind.rpartition(".")[2]
    state = {"started": "running", "resumed": "running", "redriven": "revived"}.get(word, word)
    head = click.style(f"{state_text(state):<18}", fg=hue(state) or None)
    parts = [f"{event.at.astimezone():%H:%M:%S}", head, strip_control_chars(_where(event))]
    if event.attempt > 1 and event.node is not None:
        parts.append(f"attempt {event.attempt}")
    if event.detail and event.detail.get("actor"):
        reason = event.detail.get("reason")
        parts.append(one_line(f"by {event.detail['actor']}{f': {reason}' if reason else ''}"))
    return "  ".join(parts)


def _where(event: RunEvent) -> str:
    if event.node is None:
        return "(run)"
    return event.node if event.item is None else f"{event.node}[{event.item}]"
