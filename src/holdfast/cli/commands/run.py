"""`holdfast run …`: start, list, show, explain and control runs; other modules watch, draw and answer them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.commands.effect import tell_repeats, tell_undone
from holdfast.cli.commands.run_answer import approve, reject, signal, waiting
from holdfast.cli.commands.run_graph import graph
from holdfast.cli.commands.run_watch import end_of_run, watch
from holdfast.cli.ui.command_tree import Group
from holdfast.cli.ui.completions import flow_names, run_ids
from holdfast.cli.ui.explanation import emit_why
from holdfast.cli.ui.for_each_id import for_each_id
from holdfast.cli.ui.input_option import object_of, pairs_of
from holdfast.cli.ui.output import Column, emit_json, emit_pairs, emit_rows, state_column
from holdfast.cli.ui.shell import OK, Shell, the_shell
from holdfast.cli.ui.words import age, hue, lasted, moment, state_text
from holdfast.core.values.bounds import required_reason
from holdfast.errors import Invalid

if TYPE_CHECKING:
    from holdfast.engine.queries.runs import NodeView, RunListRow, RunView
    from holdfast.operations.client import OperationClient
    from holdfast.operations.runs import RetryPlan, RunRetried, StartRun


@click.group(cls=Group)
def run() -> None:
    """Start, follow and control runs of flows."""


run.add_command(watch)
run.add_command(graph)
for answer in (waiting, approve, reject, signal):
    run.add_command(answer)


@run.command()
@click.argument("name", required=False, shell_complete=flow_names)
@click.argument("pairs", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--input", "given", metavar="JSON", help="The input: a JSON object, @FILE, or - for stdin.")
@click.option("--version", type=int, metavar="N", help="This version instead of the newest.")
@click.option("--clone", metavar="RUN_ID", help="Copy the arguments of that run; options given here override them.")
@click.option("--key", metavar="TEXT", help="Idempotency key: the same key and input give the same run.")
@click.option("--tag", "tags", multiple=True, metavar="TEXT", help="Tag it; repeat for more.")
@click.option("--priority", type=click.IntRange(0, 9), metavar="0-9", help="For all its nodes; 0 first, 9 last.")
@click.option(
    "--max-active",
    type=click.IntRange(1),
    metavar="N",
    help="At most N of its nodes are active at once; a mapped list or a sub-flow counts as one.",
)
@click.option("--wait", "waits", is_flag=True, help="Wait for the end, print the output, exit with the outcome.")
@click.option("--timeout", metavar="DURATION", help="With --wait: give up waiting after this long.")
def start(
    name: str | None, pairs: tuple[str, ...], given: str | None, waits: bool, timeout: str | None, **options: Any
) -> None:
    """Start a run of a flow that a worker declared, and print its id.

    Input is given as key=value (a value that is valid JSON is decoded, any other is text), by --input, or both.
    """
    shell = the_shell()
    if options["clone"] is not None and name is not None and "=" in name:
        pairs, name = (name, *pairs), None
    body = {**object_of(given or "{}"), **pairs_of(pairs)}
    if (name is None) == (options["clone"] is None):
        raise Invalid(
            "Name a flow, or a run to --clone.",
            code="invalid_start",
            advice="Write `holdfast run start NAME key=value` or `holdfast run start --clone RUN_ID`.",
        )
    from holdfast.operations.runs import StartRun

    tags = list(options.pop("tags"))
    raise SystemExit(shell.run(_start(shell, StartRun(flow=name, input=body, tags=tags, **options), waits, timeout)))


async def _start(shell: Shell, request: StartRun, waits: bool, timeout: str | None) -> int:
    from holdfast.operations.retrying_client import RetryingClient
    from holdfast.operations.runs import start_run

    async with shell.operation_client() as operation_client:
        run = await operation_client.ask(start_run, request)
        if waits:
            shell.talk(f"Started run {run.run_id}; waiting for its end.")
            patient = RetryingClient(operation_client, shell.talk, timeout, has_answered=True)
            return await end_of_run(shell, patient, run.run_id, timeout)
    if shell.is_json:
        emit_json(run)
        return OK
    click.echo(run.run_id)
    stands = "" if run.state == "queued" else f"; it is {run.state}"
    shell.talk(f"Started{stands}. Follow it: holdfast run watch {run.run_id}")
    return OK


@run.command("list")
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only these: running, blocked, failed …")
@click.option("--flow", metavar="NAME", help="Only this flow.", shell_complete=flow_names)
@click.option("--tag", metavar="TEXT", help="Only runs with this tag.")
@click.option("--since", metavar="WHEN", help="Only since then: a duration before now (2h), or a time.")
@click.option("--limit", type=int, default=50, show_default=True, help="At most this many.")
@click.option("--before", metavar="RUN_ID", help="Only runs before this one: the last id of the previous page.")
def list_(states: tuple[str, ...], before: str | None, **filters: Any) -> None:
    """List runs, newest first."""
    from holdfast.operations.runs import ListRuns, list_runs

    shell = the_shell()
    wanted = [part for state in states for part in state.split(",") if part]
    rows, following = shell.ask_enough(
        list_runs, ListRuns(state=wanted, before=before, **filters), lambda page: page.runs
    )
    named = {"state": ", ".join(wanted), "flow": filters["flow"], "tag": filters["tag"]}
    request = ", ".join(f"{name} {value}" for name, value in named.items() if value)
    emit_rows(shell, rows, _columns(), empty=f"No runs match {request}." if request else "No runs yet.")
    if shell.is_table and following is not None:
        shell.talk(f"More: --before {following}")


def _columns() -> list[Column[RunListRow]]:
    return [
        Column(title="RUN", text=lambda row: row.run_id),
        state_column(),
        Column(title="FLOW", text=lambda row: f"{row.flow} v{row.version}", plain=lambda row: row.flow, shrinks=True),
        Column(title="NODES", text=lambda row: f"{row.nodes - row.pending}/{row.nodes}", right=True, optional=True),
        Column(
            title="STARTED",
            text=lambda row: age(row.created_at, row.at),
            plain=lambda row: row.created_at.isoformat(),
            optional=True,
        ),
        Column(title="TOOK", text=lambda row: lasted(row.created_at, row.ended_at or row.at), optional=True),
        Column(title="NOTE", text=lambda row: row.error or "", stretch=True),
    ]


@run.command()
@click.argument("run_id", shell_complete=run_ids)
def show(run_id: str) -> None:
    """Show one run with its input, output and nodes."""
    from holdfast.operations.runs import OfRun, show_run

    shell = the_shell()
    view = shell.ask(show_run, OfRun(run_id=run_id))
    if shell.is_json:
        emit_json(view)
        return
    _print_run(shell, view)


def _print_run(shell: Shell, view: RunView) -> None:
    pairs: list[tuple[str, object]] = [
        ("run", view.run_id),
        ("flow", f"{view.flow} version {view.version}"),
        ("state", state_text(view.state) if shell.is_table else view.state),
        ("nodes", f"{view.nodes - view.pending} of {view.nodes} ended, {view.active} active, {view.failed} failed"),
        ("started", moment(view.created_at, utc=shell.utc)),
    ]
    optional: list[tuple[str, object | None]] = [
        ("ended", view.ended_at and moment(view.ended_at, utc=shell.utc)),
        ("generation", view.generation if view.generation > 1 else None),
        ("paused by", view.paused_at and f"{view.paused_by}: {view.paused_reason or 'no reason given'}"),
        ("canceled by", view.canceled_at and f"{view.canceled_by}: {view.cancel_reason or 'no reason given'}"),
        ("parent run", view.parent_run_id),
        ("copy of", view.original_run_id),
        ("tags", ", ".join(view.tags)),
        ("key", view.key),
        ("input", bytes(view.input).decode()),
        ("output", bytes(view.output).decode() if view.state == "completed" else None),
    ]
    emit_pairs(shell, pairs + [(name, value) for name, value in optional if value], hues={"state": hue(view.state)})
    emit_rows(shell, view.tasks, node_columns(view), empty="")


def node_columns(view: RunView) -> list[Column[NodeView]]:
    """Return the columns of the table of a run's nodes."""
    return [
        Column(title="NODE", text=lambda row: row.node),
        state_column(lambda row: state_text(_shown(row), row.progress)),
        Column(title="TASK", text=lambda row: row.task_id),
        Column(title="ATTEMPT", text=lambda row: str(row.attempt), right=True, optional=True),
        Column(
            title="TOOK",
            text=lambda row: lasted(row.started_at, row.ended_at or (view.at if row.state == "running" else None)),
            optional=True,
        ),
        Column(title="NOTE", text=_note, stretch=True),
    ]


def _shown(row: NodeView) -> str:
    """Return the state to show: an approval or another wait is shown as waiting, because no worker runs it."""
    return "waiting" if row.state == "running" and row.wait_key else row.state


def _note(row: NodeView) -> str:
    """Return the most useful detail about this node."""
    if row.error is not None:
        return row.error
    if row.child_run_id is not None:
        return f"run {row.child_run_id}"
    if row.state != "running" or not row.wait_key:
        return ""
    return "waits for an approval" if row.wait_key.startswith("approval:") else f"waits for {row.wait_key}"


@run.command()
@click.argument("run_id", shell_complete=run_ids)
@click.option("--node", metavar="NAME", help="Explain one of its nodes.")
def why(run_id: str, node: str | None) -> None:
    """Explain why a run, or a node of it, is in its state, and what would change that."""
    from holdfast.operations.runs import ExplainRun, why_run

    shell = the_shell()
    emit_why(shell, shell.ask(why_run, ExplainRun(run_id=run_id, node=node or None)))


@run.command()
@click.argument("run_id", shell_complete=run_ids)
@click.option(
    "--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log; required unless --dry-run."
)
@click.option("--node", metavar="NAME", help="Only this node and what is downstream of it.")
@click.option(
    "--dry-run", is_flag=True, help="Show what would run again and which effects may repeat, and change nothing."
)
def retry(run_id: str, reason: str, node: str | None, dry_run: bool) -> None:
    """Run again what failed, with everything downstream of it, as a new generation."""
    shell = the_shell()
    why = "" if dry_run else required_reason(reason)
    done = shell.run(_retry(shell, run_id, why, node, dry_run))
    if shell.is_json:
        emit_json(done)
        return
    reset = done.reset
    click.echo(f"{run_id}\t{len(reset)}")
    tell_repeats(shell, done.unknown_effects, is_dry=dry_run)
    tell_undone(shell, done.undone_effects)
    shown = ", ".join(reset[:10]) + (f" and {len(reset) - 10} more" if len(reset) > 10 else "")
    if dry_run:
        shell.talk(f"Would run again: {shown}.")
    else:
        shell.talk(f"Running again: {shown}. Follow it: holdfast run watch {run_id}")


async def _retry(shell: Shell, run_id: str, reason: str, node: str | None, dry_run: bool) -> RetryPlan | RunRetried:
    from holdfast.operations.runs import PlanRetry, RetryRun, plan_retry, retry_run

    async with shell.operation_client() as operation_client:
        if dry_run:
            return await operation_client.ask(plan_retry, PlanRetry(run_id=run_id, node=node))
        return await operation_client.ask(retry_run, RetryRun(run_id=run_id, reason=reason, node=node))


@run.command()
@click.argument("run_ids", nargs=-1, required=True, shell_complete=run_ids)
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation before canceling several.")
def cancel(run_ids: tuple[str, ...], reason: str, yes: bool) -> None:
    """Cancel runs: no more nodes start, waiting nodes end, running ones are asked to stop.

    With several runs, a refusal does not stop the others; exit code 5 means that some were refused.
    """
    shell = the_shell()
    if len(run_ids) > 1:
        shell.confirm(f"Cancel {len(run_ids)} runs?", yes=yes)
    _steer_all(shell, run_ids, "cancel", reason)


@run.command()
@click.argument("run_ids", nargs=-1, required=True, shell_complete=run_ids)
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
def pause(run_ids: tuple[str, ...], reason: str) -> None:
    """Pause runs: no more nodes start; queued and running ones continue.

    With several runs, a refusal does not stop the others; exit code 5 means that some were refused.
    """
    _steer_all(the_shell(), run_ids, "pause", reason)


@run.command()
@click.argument("run_ids", nargs=-1, required=True, shell_complete=run_ids)
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
def resume(run_ids: tuple[str, ...], reason: str) -> None:
    """Resume paused runs.

    With several runs, a refusal does not stop the others; exit code 5 means that some were refused.
    """
    _steer_all(the_shell(), run_ids, "resume", reason)


def _steer_all(shell: Shell, run_ids: tuple[str, ...], verb: str, reason: str) -> None:
    """Apply a verb to runs and print the resulting state of each."""
    from holdfast.operations.runs import SteerRun, cancel_run, pause_run, resume_run

    operation = {"cancel": cancel_run, "pause": pause_run, "resume": resume_run}[verb]

    async def steer(operation_client: OperationClient, run_id: str) -> str:
        return (await operation_client.ask(operation, SteerRun(run_id=run_id, reason=reason))).state

    raise SystemExit(shell.run(for_each_id(shell, run_ids, steer, name="run_id")))
