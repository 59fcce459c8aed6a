"""`holdfast webhook …`: where events are delivered, and the status of the deliveries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.ui.command_tree import Group
from holdfast.cli.ui.completions import webhook_names
from holdfast.cli.ui.output import Column, emit_json, emit_pairs, emit_rows
from holdfast.cli.ui.shell import FAILED, the_shell
from holdfast.cli.ui.words import age, compact, hue, moment, state_text
from holdfast.core.values.duration import human, seconds_of

if TYPE_CHECKING:
    from holdfast.engine.webhooks.commands import NewSecret, WebhookView

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=Group)
def webhook() -> None:
    """Deliver signed events to URLs, and events to your own reporters."""


def _reason(command: F) -> F:
    return click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")(command)


@webhook.command()
@click.argument("name")
@click.argument("target", metavar="URL")
@click.option(
    "--event", "kinds", multiple=True, metavar="KIND", help="Only these events, such as task.failed or task.*."
)
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="Only tasks of these queues.")
@click.option("--action", "actions", multiple=True, metavar="NAME", help="Only tasks of these actions.")
@_reason
def add(
    name: str, target: str, kinds: tuple[str, ...], queues: tuple[str, ...], actions: tuple[str, ...], reason: str
) -> None:
    """Deliver events from now on to URL, and print the signing secret: it is shown only once.

    URL may be reporter:MODULE:FACTORY, for your own code that HOLDFAST_REPORTERS names; it has no secret.
    """
    from holdfast.operations.webhooks import AddWebhook, add_webhook

    chosen = {"kinds": list(kinds), "queues": list(queues), "actions": list(actions)}
    made = the_shell().ask(add_webhook, AddWebhook(name=name, url=target, reason=reason, **chosen))
    if made.secret is None and not the_shell().is_json:
        _tell(name, "added")
        return
    _tell_secret(made, "Store this secret at the receiver. It is not shown again.")


@webhook.command("list")
def list_() -> None:
    """List webhooks with their status; a paused one shows the reason."""
    from holdfast.operations.shared_types import ListNames
    from holdfast.operations.webhooks import list_webhooks

    shell = the_shell()
    rows = shell.ask_all(list_webhooks, ListNames(), lambda page: page.webhooks)
    emit_rows(shell, rows, _columns(), empty="No webhooks. Add one: holdfast webhook add NAME URL")


@webhook.command()
@click.argument("name", shell_complete=webhook_names)
def show(name: str) -> None:
    """Show one webhook."""
    from holdfast.operations.shared_types import NameRequest
    from holdfast.operations.webhooks import show_webhook

    shell = the_shell()
    view = shell.ask(show_webhook, NameRequest(name=name))
    if shell.is_json:
        emit_json(view)
        return
    pairs = [
        ("webhook", view.name),
        ("state", state_text(view.state) if shell.is_table else view.state),
        ("url", view.url),
        ("events", _listed(view.kinds)),
        ("queues", _listed(view.queues)),
        ("actions", _listed(view.actions)),
        ("delivered", f"{view.delivered}, last {age(view.delivered_at)}"),
        ("failures", f"{view.failures} in a row" + (f": {view.last_error}" if view.last_error else "")),
        ("next try", moment(view.retry_at, utc=shell.utc)),
        ("paused", _paused(view)),
        ("old secret", "not valid" if view.old_secret_until is None else f"valid until {view.old_secret_until}"),
        ("created", f"{moment(view.created_at, utc=shell.utc)} by {view.created_by}"),
        ("cursor", view.cursor),
    ]
    emit_pairs(shell, pairs, hues={"state": hue(view.state)})


@webhook.command()
@click.argument("name", shell_complete=webhook_names)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_reason
def remove(name: str, yes: bool, reason: str) -> None:
    """Remove a webhook and stop its deliveries."""
    from holdfast.operations.shared_types import NameAndReason
    from holdfast.operations.webhooks import remove_webhook

    shell = the_shell()
    shell.confirm(f"Remove webhook {name} with its secret and its position in the event stream?", yes=yes)
    shell.ask(remove_webhook, NameAndReason(name=name, reason=reason))
    _tell(name, "removed")


@webhook.command()
@click.argument("name", shell_complete=webhook_names)
@_reason
def test(name: str, reason: str) -> None:
    """Send a test event now and print the response; also to a paused webhook."""
    from holdfast.operations.shared_types import NameAndReason
    from holdfast.operations.webhooks import test_webhook

    shell = the_shell()
    tested = shell.ask(test_webhook, NameAndReason(name=name, reason=reason))
    if shell.is_json:
        emit_json(tested)
    else:
        word = "delivered" if tested.is_delivered else "not delivered"
        click.echo(f"{name}\t{word}\t{tested.sentence} after {human(tested.seconds or 0.0)}")
    if not tested.is_delivered:
        raise SystemExit(FAILED)


@webhook.command()
@click.argument("name", shell_complete=webhook_names)
@click.option(
    "--grace",
    metavar="TIME",
    default="24h",
    show_default=True,
    help="How long deliveries are also signed with the old secret.",
)
@_reason
def rotate(name: str, grace: str, reason: str) -> None:
    """Create another secret and print it, only once; during the grace time deliveries are signed with both."""
    from holdfast.operations.webhooks import RotateWebhook, rotate_webhook

    request = RotateWebhook(name=name, grace_seconds=seconds_of(grace), reason=reason)
    made = the_shell().ask(rotate_webhook, request)
    _tell_secret(made, f"Deliveries are also signed with the old secret for {grace}.")


@webhook.command()
@click.argument("name", shell_complete=webhook_names)
@_reason
def pause(name: str, reason: str) -> None:
    """Pause deliveries; events of the pause are delivered after `resume`."""
    from holdfast.operations.shared_types import NameAndReason
    from holdfast.operations.webhooks import pause_webhook

    done = the_shell().ask(pause_webhook, NameAndReason(name=name, reason=reason))
    _tell(name, "paused" if done.is_changed else "already paused")


@webhook.command()
@click.argument("name", shell_complete=webhook_names)
@click.option("--from-now", is_flag=True, help="Skip the events since the pause, including the one that failed.")
@_reason
def resume(name: str, from_now: bool, reason: str) -> None:
    """Resume deliveries where they stopped."""
    from holdfast.operations.webhooks import ResumeWebhook, resume_webhook

    done = the_shell().ask(resume_webhook, ResumeWebhook(name=name, from_now=from_now, reason=reason))
    _tell(name, "resumed" if done.is_changed else "was not paused")


def _columns() -> list[Column[WebhookView]]:
    return [
        Column(title="WEBHOOK", text=lambda row: row.name),
        Column(
            title="STATE",
            text=lambda row: state_text(row.state),
            plain=lambda row: row.state,
            hue=lambda row: hue(row.state),
        ),
        Column(
            title="DELIVERED",
            text=lambda row: compact(row.delivered),
            plain=lambda row: row.delivered,
            right=True,
            optional=True,
        ),
        Column(title="LAST", text=lambda row: age(row.delivered_at), plain=lambda row: row.delivered_at, optional=True),
        Column(title="EVENTS", text=lambda row: _listed(row.kinds), shrinks=True, optional=True),
        Column(title="URL", text=lambda row: row.url, shrinks=True),
        Column(title="NOTE", text=_note, stretch=True),
    ]


def _listed(names: list[str] | None) -> str:
    return "all" if names is None else ", ".join(names)


def _note(row: WebhookView) -> str:
    if row.paused_at is not None:
        return _paused(row)
    return f"{row.failures} failed, next try {age(row.retry_at)}: {row.last_error}" if row.failures else ""


def _paused(row: WebhookView) -> str:
    return "–" if row.paused_at is None else f"by {row.paused_by}: {row.paused_reason or 'no reason given'}"


def _tell_secret(made: NewSecret, note: str) -> None:
    shell = the_shell()
    if shell.is_json:
        emit_json(made)
        return
    click.echo(made.secret)
    shell.talk(note)


def _tell(name: str, word: str) -> None:
    if the_shell().is_json:
        emit_json({"name": name, "result": word})
        return
    click.echo(f"{name}\t{word}")
