"""`holdfast audit …`: the log of privileged changes, and its verification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.ui.command_tree import Group
from holdfast.cli.ui.output import Column, emit_json, emit_rows
from holdfast.cli.ui.shell import FAILED, OK, Shell, the_shell
from holdfast.cli.ui.words import age, strip_control_chars

if TYPE_CHECKING:
    from holdfast.engine.audit import AuditRow, AuditVerified


@click.group(cls=Group)
def audit() -> None:
    """List audited changes, and prove that the log was not rewritten."""


@audit.command("list")
@click.option("--actor", metavar="NAME", help="Only changes by this actor.")
@click.option("--verb", metavar="VERB", help="Only this kind of change, such as queue.pause or task.retry.")
@click.option(
    "--subject",
    metavar="KIND[:ID]",
    help="Only changes of this kind of object, or of one object: queue, queue:mail, task:1042.",
)
@click.option("--since", metavar="DURATION", help='Only the last "1h", "7d" …')
@click.option("--limit", type=int, default=50, show_default=True, help="At most this many.")
@click.option(
    "--before", type=int, metavar="SEQ", help="Only rows before this one: the last number of the previous page."
)
def list_(subject: str | None, since: str | None, limit: int, **filters: Any) -> None:
    """List privileged changes, newest first."""
    from holdfast.core.values.duration import seconds_of
    from holdfast.operations.administration import ListAudit, list_audit

    shell = the_shell()
    kind, _, number = (subject or "").partition(":")
    filters |= {"subject_kind": kind or None, "subject_id": number or None, "limit": limit}
    seconds = None if since is None else seconds_of(since)
    request = ListAudit(since_seconds=seconds, **filters)
    rows, _ = shell.ask_enough(list_audit, request, lambda page: page.rows)
    emit_rows(shell, rows, _columns(), empty="No privileged changes are recorded.")
    if shell.is_table and len(rows) == limit:
        shell.talk(f"More: --before {rows[-1].seq}")


def _columns() -> list[Column[AuditRow]]:
    return [
        Column(title="ROW", text=lambda row: str(row.seq), right=True),
        Column(title="WHEN", text=lambda row: age(row.at), plain=lambda row: row.at.isoformat()),
        Column(title="ACTOR", text=lambda row: row.actor, shrinks=True),
        Column(title="VERB", text=lambda row: row.verb),
        Column(title="SUBJECT", text=lambda row: f"{row.subject_kind}:{row.subject_id}", shrinks=True),
        Column(title="CHANGED", text=_changed, shrinks=True, optional=True),
        Column(title="REASON", text=lambda row: row.reason or "–", plain=lambda row: row.reason, stretch=True),
    ]


def _changed(row: AuditRow) -> str:
    """Return the changed fields in short: `state open → ignored`, or only the new or the old value."""
    before = row.before if isinstance(row.before, dict) else {}
    after = row.after if isinstance(row.after, dict) else {}
    if not before and not after:
        return f"{_word(row.before)} → {_word(row.after)}"
    names = [name for name in {**after, **before} if _word(before.get(name)) != _word(after.get(name))]
    names.sort(key=lambda name: name != "state")
    return ", ".join(_difference(name.replace("_", " "), name, before, after) for name in names) or "nothing"


def _difference(title: str, name: str, before: dict[str, Any], after: dict[str, Any]) -> str:
    if name not in before:
        return f"{title} {_word(after[name])}" if not before else f"{title} – → {_word(after[name])}"
    return f"{title} {_word(before[name])} → {_word(after.get(name))}"


def _word(value: Any) -> str:
    """Return a recorded value in readable form."""
    if value is None or value == "" or value == [] or value == {}:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " + ".join(_word(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {_word(item)}" for name, item in value.items())
    return str(value)


@audit.command()
@click.option(
    "--anchor", "anchors", multiple=True, metavar="[SEQ:]HASH", help="An anchor recorded earlier; may be repeated."
)
def verify(anchors: tuple[str, ...]) -> None:
    """Recompute the whole chain; exit 1 at the first row that was changed.

    The printed anchor names the last row. Stored elsewhere and passed later with --anchor, it reveals even a chain that
    was rewritten from the beginning.
    """
    from holdfast.operations.administration import VerifyAudit, verify_audit

    shell = the_shell()
    with shell.busy("Recomputing the chain"):
        found = shell.ask(verify_audit, VerifyAudit(anchor=list(anchors)))
    if shell.is_json:
        emit_json({"checked": found.checked, "anchor": found.anchor, "broken": found.broken})
    else:
        _print(shell, found)
    raise SystemExit(OK if found.is_sound else FAILED)


def _print(shell: Shell, found: AuditVerified) -> None:
    if found.broken is not None:
        mark = click.style("✕", fg="red")
        click.echo(
            f"{mark} {strip_control_chars(found.broken.sentence)} [{found.broken.code}]", color=shell.has_colour()
        )
        shell.talk(f"{found.checked} rows before it are intact.")
        return
    if found.anchor is not None:
        click.echo(found.anchor)
    shell.talk(f"{found.checked} rows checked, the chain is intact.")
