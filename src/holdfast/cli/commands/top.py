"""`holdfast top`: queues and workers, live. Without a terminal it prints one snapshot, for scripts."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.commands import queue as queue_commands
from holdfast.cli.commands import worker as worker_commands
from holdfast.cli.ui.command_tree import Command
from holdfast.cli.ui.output import Column, emit_json, emit_rows, table_of
from holdfast.cli.ui.shell import Shell, all_of, the_shell
from holdfast.cli.ui.words import compact, counted

if TYPE_CHECKING:
    from holdfast.engine.limits.queues import QueueView
    from holdfast.engine.queries.workers import WorkerView
    from holdfast.operations.client import OperationClient

WORKERS_SHOWN_MAX = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class TopSnapshot:
    """The state at one moment; rates need two."""

    queues: list[QueueView]
    workers: list[WorkerView]
    enqueued: int
    finished: int
    taken_at: float


@click.command(cls=Command)
@click.option(
    "--every", type=click.FloatRange(0.2, 60), default=1.0, show_default=True, help="Seconds between refreshes."
)
@click.option("--once", is_flag=True, help="Print once and exit.")
def top(every: float, once: bool) -> None:
    """Watch queues and workers live; Ctrl-C leaves."""
    shell = the_shell()
    if once or not shell.is_table or not sys.stdout.isatty():
        snapshot = shell.run(_look_once(shell))
        if shell.is_json:
            emit_json({"queues": snapshot.queues, "workers": snapshot.workers})
        else:
            emit_rows(shell, snapshot.queues, _queue_columns(), empty="No queues yet.")
            if shell.is_table:
                click.echo()
            emit_rows(shell, snapshot.workers, worker_commands.columns(), empty="No workers are running.")
        return
    try:
        shell.run(_watch(shell, every))
    except KeyboardInterrupt:
        return


async def _look_once(shell: Shell) -> TopSnapshot:
    async with shell.operation_client() as operation_client:
        return await _look(operation_client)


async def _look(operation_client: OperationClient) -> TopSnapshot:
    from holdfast.operations.administration import read_throughput
    from holdfast.operations.queues import ListQueues, list_queues
    from holdfast.operations.shared_types import Empty
    from holdfast.operations.workers import ListWorkers, list_workers

    pulse = await operation_client.ask(read_throughput, Empty())
    workers = (await operation_client.ask(list_workers, ListWorkers())).workers
    return TopSnapshot(
        queues=await all_of(operation_client, list_queues, ListQueues(history=False), lambda page: page.queues),
        workers=[worker for worker in workers if worker.state != "gone"],
        enqueued=pulse.enqueued,
        finished=pulse.finished,
        taken_at=time.monotonic(),
    )


async def _watch(shell: Shell, every: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(no_color=not shell.has_colour(), highlight=False)
    async with shell.retrying_client() as operation_client:
        before = await _look(operation_client)
        with Live(_screen(before, before), console=console, screen=True, auto_refresh=False) as live:
            while True:
                await asyncio.sleep(every)
                now = await _look(operation_client)
                live.update(_screen(before, now), refresh=True)
                before = now


def _screen(before: TopSnapshot, now: TopSnapshot) -> Any:
    from rich.console import Group
    from rich.text import Text

    queued = sum(queue.queued for queue in now.queues)
    running = sum(queue.running for queue in now.queues)
    retrying = sum(queue.retrying for queue in now.queues)
    head = Text.assemble(
        ("holdfast  ", "bold"),
        f"≡ {compact(queued)} queued   ",
        (f"▶ {compact(running)} running   ", "blue"),
        (f"↻ {compact(retrying)} retrying   ", "yellow"),
        f"in {_rate(before.enqueued, now.enqueued, before, now)}   ",
        (f"done {_rate(before.finished, now.finished, before, now)}   ", "cyan"),
        counted(sum(worker.state == "active" for worker in now.workers), "worker"),
    )
    shown = now.workers[:WORKERS_SHOWN_MAX]
    hidden = len(now.workers) - len(shown)
    rest = Text(f"and {hidden} more" if hidden else "", style="dim")
    return Group(
        head, Text(), table_of(now.queues, _queue_columns()), Text(), table_of(shown, worker_commands.columns()), rest
    )


def _queue_columns() -> list[Column[QueueView]]:
    """Return the columns of queues without counts of history, so that each refresh stays cheap."""
    return [column for column in queue_commands.columns() if column.title not in ("BLOCKED", "COMPLETED", "FAILED")]


def _rate(first: int, second: int, before: TopSnapshot, now: TopSnapshot) -> str:
    seconds = now.taken_at - before.taken_at
    return "–/s" if seconds <= 0 else f"{compact(max(0, round((second - first) / seconds)))}/s"
