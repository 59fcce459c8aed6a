"""`holdfast run …`: start, list, show, explain and steer runs; watching and drawing are in files of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.complete import flow_names, run_ids
from holdfast.cli.effect import tell_repeats
from holdfast.cli.given import object_of, pairs_of
from holdfast.cli.run_graph import graph
from holdfast.cli.run_watch import end_of_run, watch
from holdfast.cli.shell import OK, Shell, actor, the_shell
from holdfast.cli.show import Column, emit_json, emit_pairs, emit_rows
from holdfast.cli.tree import Group
from holdfast.cli.why import emit_why
from holdfast.cli.words import age, hue, lasted, moment, state_text
from holdfast.core.limits import required_reason
from holdfast.errors import Invalid

if TYPE_CHECKING:
    from holdfast.client.client import Client
    from holdfast.client.runs import Run
    from holdfast.core.explain import Explanation
    from holdfast.dispatcher.runs import PlannedRetry
    from holdfast.dispatcher.show_runs import NodeView, RunLine, RunView


@click.group(cls=Group)
def run() -> None:
    """Start, follow and steer runs of flows."""


run.add_command(watch)
run.add_command(graph)


@run.command()
@click.argument("name", required=False, shell_complete=flow_names)
@click.argument("pairs", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--input", "given", metavar="JSON", help="The input: a JSON object, @FILE, or - for stdin.")
@click.option("--version", type=int, metavar="N", help="This version instead of the newest.")
@click.option("--clone", metavar="RUN_ID", help="As that run was started, but for what is given here.")
@click.option("--key", metavar="TEXT", help="Idempotency key: the same key and input give the same run.")
@click.option("--tag", "tags", multiple=True, metavar="TEXT", help="Tag it; repeat for more.")
@click.option("--priority", type=click.IntRange(0, 9), metavar="0-9", help="For all its nodes; 0 first, 9 last.")
@click.option("--max-active", type=click.IntRange(1), metavar="N", help="At most N of its nodes are under way at once.")
@click.option("--wait", "waits", is_flag=True, help="Wait for the end, print the output, exit with the outcome.")
@click.option("--timeout", metavar="DURATION", help="With --wait: give up waiting after this long.")
def start(
    name: str | None, pairs: tuple[str, ...], given: str | None, waits: bool, timeout: str | None, **options: Any
) -> None:
    """Start a run of a flow that some worker declared, and print its id.

    Input is given as key=value (a value is read as JSON where it is JSON, else as text) or by --input, or both.
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
    raise SystemExit(shell.run(_start(shell, name, body, waits, timeout, options)))


async def _start(
    shell: Shell, name: str | None, body: dict[str, Any], waits: bool, timeout: str | None, options: dict[str, Any]
) -> int:
    async with shell.client() as client:
        run = await _started(client, name, body, options)
        if waits:
            shell.talk(f"Started run {run.run_id}; waiting for its end.")
            return await end_of_run(shell, run, timeout)
    if shell.is_json:
        emit_json({"run_id": run.run_id, "state": "queued"})
        return OK
    click.echo(run.run_id)
    shell.talk(f"Started. Follow it: holdfast run watch {run.run_id}")
    return OK


async def _started(client: Client, name: str | None, body: dict[str, Any], options: dict[str, Any]) -> Run:
    from holdfast.client.client import task_number
    from holdfast.client.runs import copy_run
    from holdfast.core import limits
    from holdfast.dispatcher.start import RunOptions

    if name is None:
        return await copy_run(client, task_number(options["clone"]), body, key=options["key"])
    chosen = RunOptions(
        max_active=options["max_active"],
        priority=options["priority"],
        tags=limits.valid_tags(options["tags"]),
        key=options["key"],
    )
    return await client.start_by_name(name, body, version=options["version"], options=chosen)


@run.command("list")
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only these: running, blocked, failed …")
@click.option("--flow", metavar="NAME", help="Only this flow.", shell_complete=flow_names)
@click.option("--tag", metavar="TEXT", help="Only runs with this tag.")
@click.option("--limit", type=int, default=50, show_default=True, help="At most this many.")
@click.option("--before", metavar="RUN_ID", help="The page before this run: the last id of the previous page.")
def list_(states: tuple[str, ...], before: str | None, **filters: Any) -> None:
    """List runs, newest first."""
    shell = the_shell()
    wanted = [part for state in states for part in state.split(",") if part]
    rows = shell.run(_list(shell, wanted, before, filters))
    named = {"state": ", ".join(wanted), "flow": filters["flow"], "tag": filters["tag"]}
    asked = ", ".join(f"{name} {value}" for name, value in named.items() if value)
    emit_rows(shell, rows, _columns(), empty=f"No runs match {asked}." if asked else "No runs yet.")
    if shell.is_table and len(rows) == filters["limit"]:
        shell.talk(f"More: --before {rows[-1].run_id}")


async def _list(shell: Shell, states: list[str], before: str | None, filters: dict[str, Any]) -> list[RunLine]:
    from holdfast.client.client import task_number
    from holdfast.dispatcher.show_runs import list_runs
    from holdfast.store.catalog import DEFAULT_TENANT_ID

    number = None if before is None else task_number(before)
    async with shell.client() as client:
        engine = client.engine
        return await list_runs(
            engine.database, engine.catalog, DEFAULT_TENANT_ID, states=states, before=number, **filters
        )


def _columns() -> list[Column[RunLine]]:
    return [
        Column(title="RUN", text=lambda row: row.run_id),
        Column(
            title="STATE",
            text=lambda row: state_text(row.state),
            plain=lambda row: row.state,
            hue=lambda row: hue(row.state),
        ),
        Column(title="FLOW", text=lambda row: f"{row.flow} v{row.version}", plain=lambda row: row.flow),
        Column(title="NODES", text=lambda row: f"{row.nodes - row.pending}/{row.nodes}", right=True),
        Column(
            title="STARTED",
            text=lambda row: age(row.created_at, row.at),
            plain=lambda row: row.created_at.isoformat(),
        ),
        Column(title="TOOK", text=lambda row: lasted(row.created_at, row.ended_at or row.at)),
        Column(title="NOTE", text=lambda row: row.error or "", stretch=True),
    ]


@run.command()
@click.argument("run_id", shell_complete=run_ids)
def show(run_id: str) -> None:
    """Show one run with its input, output and nodes."""
    shell = the_shell()
    view = shell.run(_show(shell, run_id))
    if shell.is_json:
        emit_json(view)
        return
    _print_run(shell, view)


async def _show(shell: Shell, run_id: str) -> RunView:
    async with shell.client() as client:
        return await client.run(run_id).show()


def _print_run(shell: Shell, view: RunView) -> None:
    pairs: list[tuple[str, object]] = [
        ("run", view.run_id),
        ("flow", f"{view.flow} version {view.version}"),
        ("state", state_text(view.state) if shell.is_table else view.state),
        ("nodes", f"{view.nodes - view.pending} of {view.nodes} over, {view.active} active, {view.failed} failed"),
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
        ("output", None if view.output is None else bytes(view.output).decode()),
    ]
    emit_pairs(shell, pairs + [(name, value) for name, value in optional if value], hues={"state": hue(view.state)})
    emit_rows(shell, view.tasks, node_columns(view), empty="")


def node_columns(view: RunView) -> list[Column[NodeView]]:
    """The table of a run's nodes."""
    return [
        Column(title="NODE", text=lambda row: row.node),
        Column(
            title="STATE",
            text=lambda row: state_text(row.state, row.progress),
            plain=lambda row: row.state,
            hue=lambda row: hue(row.state),
        ),
        Column(title="TASK", text=lambda row: row.task_id),
        Column(title="ATTEMPT", text=lambda row: str(row.attempt), right=True),
        Column(
            title="TOOK",
            text=lambda row: lasted(row.started_at, row.ended_at or (view.at if row.state == "running" else None)),
        ),
        Column(title="NOTE", text=_note, stretch=True),
    ]


def _note(row: NodeView) -> str:
    """What one would ask next about this node."""
    if row.error is not None:
        return row.error
    if row.child_run_id is not None:
        return f"run {row.child_run_id}"
    return f"waits for {row.wait_key}" if row.state == "running" and row.wait_key else ""


@run.command()
@click.argument("run_id", shell_complete=run_ids)
@click.option("--node", metavar="NAME", help="Explain one of its nodes.")
def why(run_id: str, node: str | None) -> None:
    """Explain why a run, or a node of it, is where it is, and what would move it."""
    shell = the_shell()
    explanation = shell.run(_why(shell, run_id, node))
    emit_why(shell, {"run_id": run_id, **({"node": node} if node else {})}, explanation)


async def _why(shell: Shell, run_id: str, node: str | None) -> Explanation:
    async with shell.client() as client:
        return await client.run(run_id).why(node)


@run.command()
@click.argument("run_id", shell_complete=run_ids)
@click.option("--reason", metavar="TEXT", default="", help="Why, for the record; needed unless --dry-run.")
@click.option("--node", metavar="NAME", help="Only this node and what is downstream of it.")
@click.option("--dry-run", is_flag=True, help="Say what would run again and which effects may repeat, and do nothing.")
def retry(run_id: str, reason: str, node: str | None, dry_run: bool) -> None:
    """Run again what failed, with everything downstream of it, as a new generation."""
    shell = the_shell()
    why = "" if dry_run else required_reason(reason)
    plan, reset = shell.run(_retry(shell, run_id, why, node, dry_run))
    if shell.is_json:
        body: dict[str, Any] = {"run_id": run_id, "reset": reset, "unknown_effects": plan.unknown_effects}
        emit_json({**body, "roots": plan.roots, "dry_run": True} if dry_run else body)
        return
    click.echo(f"{run_id}\t{len(reset)}")
    tell_repeats(shell, plan.unknown_effects, is_dry=dry_run)
    shown = ", ".join(reset[:10]) + (f" and {len(reset) - 10} more" if len(reset) > 10 else "")
    if dry_run:
        shell.talk(f"Would run again: {shown}.")
    else:
        shell.talk(f"Running again: {shown}. Follow it: holdfast run watch {run_id}")


async def _retry(
    shell: Shell, run_id: str, reason: str, node: str | None, dry_run: bool
) -> tuple[PlannedRetry, list[str]]:
    """What its nodes may have done already is told with it: whoever runs them again should know."""
    async with shell.client() as client:
        run = client.run(run_id)
        plan = await run.plan_retry(only=node)
        return plan, plan.reset if dry_run else await run.retry(reason, only=node, actor=actor())


@run.command()
@click.argument("run_ids", nargs=-1, required=True, shell_complete=run_ids)
@click.option("--reason", metavar="TEXT", default="", help="Why, for whoever reads the record.")
@click.option("--yes", is_flag=True, help="Do not ask before canceling several.")
def cancel(run_ids: tuple[str, ...], reason: str, yes: bool) -> None:
    """Cancel runs: nothing more starts, what waits ends, what runs is asked to stop."""
    shell = the_shell()
    if len(run_ids) > 1:
        shell.confirm(f"Cancel {len(run_ids)} runs?", yes=yes)
    _steer_all(shell, run_ids, "cancel", reason)


@run.command()
@click.argument("run_ids", nargs=-1, required=True, shell_complete=run_ids)
@click.option("--reason", metavar="TEXT", default="", help="Why, for whoever wonders.")
def pause(run_ids: tuple[str, ...], reason: str) -> None:
    """Start no more nodes of a run; what is queued or runs goes on."""
    _steer_all(the_shell(), run_ids, "pause", reason)


@run.command()
@click.argument("run_ids", nargs=-1, required=True, shell_complete=run_ids)
@click.option("--reason", metavar="TEXT", default="", help="Why, for whoever wonders.")
def resume(run_ids: tuple[str, ...], reason: str) -> None:
    """Let a paused run go on."""
    _steer_all(the_shell(), run_ids, "resume", reason)


def _steer_all(shell: Shell, run_ids: tuple[str, ...], verb: str, reason: str) -> None:
    """Do the same to some runs and print how each stands then."""
    states = shell.run(_steer(shell, run_ids, verb, reason))
    if shell.is_json:
        shown = [{"run_id": run_id, "state": state} for run_id, state in states]
        emit_json(shown[0] if len(shown) == 1 else shown)
        return
    for run_id, state in states:
        click.echo(f"{run_id}\t{state}")


async def _steer(shell: Shell, run_ids: tuple[str, ...], verb: str, reason: str) -> list[tuple[str, str]]:
    states = []
    async with shell.client() as client:
        for run_id in run_ids:
            run = client.run(run_id)
            await getattr(run, verb)(reason, actor=actor())
            states.append((run_id, (await run.show()).state))
    return states
