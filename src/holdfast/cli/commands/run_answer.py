"""`holdfast run waiting|approve|reject|signal`: what runs wait for from outside, and how to answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.ui.command_tree import Command
from holdfast.cli.ui.completions import run_ids
from holdfast.cli.ui.input_option import value_of
from holdfast.cli.ui.output import Column, emit_json, emit_rows
from holdfast.cli.ui.shell import Shell, the_shell
from holdfast.cli.ui.words import age
from holdfast.core.values.bounds import required_reason

if TYPE_CHECKING:
    from holdfast.engine.queries.waiting import WaitView
    from holdfast.operations.waits import NodeAnswered


@click.command(cls=Command)
@click.option("--limit", type=int, default=50, show_default=True, help="At most this many.")
@click.option("--after", metavar="TASK_ID", help="Only nodes after this one: the last task id of the previous page.")
def waiting(limit: int, after: str | None) -> None:
    """List nodes that wait for an approval or an event, and the command that answers each."""
    from holdfast.operations.waits import ListWaits, list_waits

    shell = the_shell()
    rows = shell.ask(list_waits, ListWaits(after=after, limit=limit)).waits
    emit_rows(shell, rows, _columns(), empty="Nothing waits for an approval or an event.")
    if shell.is_table and len(rows) == limit:
        shell.talk(f"More: --after {rows[-1].task_id}")


def _columns() -> list[Column[WaitView]]:
    return [
        Column(title="RUN", text=lambda row: row.run_id),
        Column(title="NODE", text=lambda row: row.node),
        Column(
            title="FLOW",
            text=lambda row: f"{row.flow} v{row.version}",
            plain=lambda row: row.flow,
            shrinks=True,
            optional=True,
        ),
        Column(title="WAITS FOR", text=_waits_for, shrinks=True),
        Column(
            title="STARTED",
            text=lambda row: age(row.run_created_at, row.at),
            plain=lambda row: row.run_created_at.isoformat(),
        ),
        Column(
            title="UNTIL",
            text=lambda row: "" if row.deadline is None else age(row.deadline, row.at),
            plain=lambda row: "" if row.deadline is None else row.deadline.isoformat(),
        ),
        Column(title="ANSWER", text=lambda row: row.moves[0]),
        Column(title="ASKS", text=lambda row: row.prompt, stretch=True),
    ]


def _waits_for(row: WaitView) -> str:
    return "approval" if row.kind == "approval" else row.event + ("" if row.key is None else f":{row.key}")


@click.command(cls=Command)
@click.argument("run_id", shell_complete=run_ids)
@click.argument("node")
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
def approve(run_id: str, node: str, reason: str) -> None:
    """Approve a node of a run that waits for it.

    The first answer counts. An answer that comes before the node waits is kept until it does.
    """
    from holdfast.operations.waits import ApproveNode, approve_node

    shell = the_shell()
    _tell(shell, shell.ask(approve_node, ApproveNode(run_id=run_id, node=node, reason=reason)))


@click.command(cls=Command)
@click.argument("run_id", shell_complete=run_ids)
@click.argument("node")
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log; required.")
def reject(run_id: str, node: str, reason: str) -> None:
    """Reject a node of a run that waits for approval: the node fails."""
    from holdfast.operations.waits import RejectNode, reject_node

    shell = the_shell()
    why = required_reason(reason)
    _tell(shell, shell.ask(reject_node, RejectNode(run_id=run_id, node=node, reason=why)))


def _tell(shell: Shell, done: NodeAnswered) -> None:
    if shell.is_json:
        emit_json(done)
        return
    click.echo(f"{done.run_id}\t{done.node}\t{done.answer}")
    early = f" {done.node} does not wait yet; it takes this answer when it does." if done.is_early else ""
    shell.talk(f"{done.node} is {done.answer}; the run is {done.state}.{early}")


@click.command(cls=Command)
@click.argument("name")
@click.option("--key", metavar="TEXT", help="Key that the wait requires.")
@click.option("--data", metavar="JSON", help="Payload of the event: JSON, @FILE, or - for stdin.")
@click.option("--run", "run_id", metavar="RUN_ID", help="Only for this run.", shell_complete=run_ids)
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
def signal(name: str, key: str | None, data: str | None, run_id: str | None, reason: str) -> None:
    """Send an event to runs whose nodes wait for it, or will."""
    from holdfast.operations.waits import SendSignal, send_signal

    shell = the_shell()
    payload = None if data is None else value_of(data, option="--data")
    sent = shell.ask(send_signal, SendSignal(name=name, key=key, data=payload, run_id=run_id, reason=reason))
    if shell.is_json:
        emit_json(sent)
        return
    for wait in sent.waits:
        click.echo(f"{wait.run_id}\t{wait.node}")
    if sent.waits:
        shell.talk(f"Sent {sent.wait_key}: {len(sent.waits)} waited for it.")
    else:
        shell.talk(f"Sent {sent.wait_key}: no node waits for it yet; existing runs receive it when they do.")
