"""`holdfast worker …`: workers, their running tasks, and draining."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.ui.command_tree import Group
from holdfast.cli.ui.output import Column, emit_json, emit_pairs, emit_rows, state_column
from holdfast.cli.ui.shell import the_shell
from holdfast.cli.ui.words import age, hue, moment, state_text
from holdfast.core.values.duration import human

if TYPE_CHECKING:
    from holdfast.engine.queries.workers import HeldTask, WorkerView


@click.group(cls=Group)
def worker() -> None:
    """List and drain workers."""


@worker.command("list")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="At most this many.")
@click.option("--all", "with_all", is_flag=True, help="Include workers that signed off.")
def list_(limit: int, with_all: bool) -> None:
    """List workers, active and draining ones first; lost ones stay visible."""
    from holdfast.operations.workers import ListWorkers, list_workers

    shell = the_shell()
    rows = shell.ask(list_workers, ListWorkers(limit=limit)).workers
    rows = [row for row in rows if with_all or row.state != "gone"]
    emit_rows(shell, rows, columns(), empty="No workers are running. Start one: holdfast work APP")


def columns() -> list[Column[WorkerView]]:
    """Return the columns of the table of workers, also used by `top`."""
    return [
        Column(title="WORKER", text=lambda row: row.worker_id),
        state_column(),
        Column(title="NAME", text=lambda row: row.name, shrinks=True),
        Column(title="SLOTS", text=lambda row: f"{row.running}/{row.slots}", right=True),
        Column(
            title="BEAT",
            text=lambda row: f"{human(row.beat_age_seconds)} ago",
            plain=lambda row: row.beat_age_seconds,
            optional=True,
        ),
        Column(
            title="UP",
            text=lambda row: age(row.started_at),
            plain=lambda row: row.started_at.isoformat(),
            optional=True,
        ),
        Column(title="VERSION", text=lambda row: row.version or "–", optional=True),
        Column(
            title="PROBE",
            text=_probed,
            hue=lambda row: hue("failed") if _probed(row) == "unhealthy" else "",
            optional=True,
        ),
        Column(title="QUEUES", text=lambda row: "all" if row.queues is None else ", ".join(row.queues), stretch=True),
    ]


def _probed(row: WorkerView) -> str:
    """Return the result of the worker's probe in one word."""
    if row.probe is None:
        return "–"
    return {True: "healthy", False: "unhealthy", None: "unknown"}[row.probe.is_healthy]


@worker.command()
@click.argument("worker_id")
def show(worker_id: str) -> None:
    """Show one worker and its running tasks."""
    from holdfast.operations.workers import OfWorker, show_worker

    shell = the_shell()
    view = shell.ask(show_worker, OfWorker(worker_id=worker_id))
    if shell.is_json:
        emit_json(view)
        return
    pairs = [
        ("worker", view.worker_id),
        ("name", view.name),
        ("state", state_text(view.state) if shell.is_table else view.state),
        ("slots", f"{view.running} of {view.slots} busy"),
        ("queues", "all" if view.queues is None else ", ".join(view.queues)),
        ("actions", ", ".join(view.actions)),
        ("version", view.version or "–"),
        ("started", moment(view.started_at, utc=shell.utc)),
        ("last beat", f"{human(view.beat_age_seconds)} ago"),
        ("ended", moment(view.ended_at, utc=shell.utc)),
    ]
    if view.probe is not None:
        seen = f"{view.probe.detail}, {age(view.probe.checked_at)}; failures in a row: {view.probe.failures}"
        pairs += [("probe", f"{_probed(view)}: {seen}"), ("probe url", view.probe.url)]
    emit_pairs(shell, pairs, hues={"state": hue(view.state)})
    if view.tasks:
        emit_rows(shell, view.tasks, _held_columns(), empty="")


def _held_columns() -> list[Column[HeldTask]]:
    return [
        Column(title="TASK", text=lambda row: row.task_id),
        Column(title="ACTION", text=lambda row: row.action, shrinks=True),
        Column(title="QUEUE", text=lambda row: row.queue),
        Column(title="ATTEMPT", text=lambda row: str(row.attempt), optional=True),
        Column(
            title="STARTED",
            text=lambda row: age(row.started_at),
            plain=lambda row: row.started_at.isoformat(),
            optional=True,
        ),
        Column(title="NOTE", text=lambda row: "stop requested" if row.is_canceling else "", stretch=True),
    ]


@worker.command()
@click.argument("worker_id")
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
def drain(worker_id: str, reason: str) -> None:
    """Ask a worker to finish its running tasks and claim no more."""
    from holdfast.operations import workers

    shell = the_shell()
    view = shell.ask(workers.drain, workers.SteerWorker(worker_id=worker_id, reason=reason))
    if shell.is_json:
        emit_json(view)
        return
    click.echo(f"{view.worker_id}\t{view.state}")
    shell.talk(f"{view.name} claims no more tasks; {view.running} are still running.")
