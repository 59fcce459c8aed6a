"""`holdfast action …`: the actions that workers declared, with their policies and breakers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.ui.command_tree import Group
from holdfast.cli.ui.completions import action_names
from holdfast.cli.ui.output import Column, emit_json, emit_pairs, emit_rows
from holdfast.cli.ui.shell import Shell, the_shell
from holdfast.cli.ui.words import age, moment
from holdfast.core.values.duration import human

if TYPE_CHECKING:
    from holdfast.engine.limits.breakers import BreakerView
    from holdfast.engine.queries.workers import ActionView


@click.group(cls=Group)
def action() -> None:
    """List actions, and control their circuit breakers."""


@action.command("list")
def list_() -> None:
    """List the actions that workers declared."""
    from holdfast.operations.shared_types import ListNames
    from holdfast.operations.workers import list_actions

    shell = the_shell()
    rows = shell.ask_all(list_actions, ListNames(), lambda page: page.actions)
    emit_rows(shell, rows, _columns(), empty="No worker declared an action yet: holdfast work APP")


def _columns() -> list[Column[ActionView]]:
    return [
        Column(title="ACTION", text=lambda row: row.name),
        Column(title="QUEUE", text=lambda row: row.queue),
        Column(title="RETRIES", text=lambda row: str(row.max_retries), right=True, optional=True),
        Column(
            title="TIMEOUT",
            optional=True,
            text=lambda row: "–" if row.timeout_seconds is None else human(row.timeout_seconds),
            plain=lambda row: row.timeout_seconds,
            right=True,
        ),
        Column(title="WORKERS", text=lambda row: str(row.workers), right=True, optional=True),
        Column(
            title="BREAKER",
            optional=True,
            text=lambda row: "–" if row.breaker is None else row.breaker.replace("_", "-"),
            plain=lambda row: row.breaker,
            hue=lambda row: "" if row.breaker in (None, "closed") else "yellow",
        ),
        Column(title="VERSION", text=lambda row: row.version or "–", optional=True),
        Column(
            title="DECLARED",
            text=lambda row: age(row.seen_at),
            plain=lambda row: row.seen_at.isoformat(),
            optional=True,
        ),
    ]


@action.command()
@click.argument("name", shell_complete=action_names)
def show(name: str) -> None:
    """Show one action and its whole retry policy."""
    from holdfast.operations.shared_types import NameRequest
    from holdfast.operations.workers import show_action

    shell = the_shell()
    view = shell.ask(show_action, NameRequest(name=name))
    if shell.is_json:
        emit_json(view)
        return
    pairs: list[tuple[str, object]] = [
        ("action", view.name),
        ("queue", view.queue),
        ("workers", view.workers),
        ("version", view.version or "–"),
        ("declared", moment(view.seen_at, utc=shell.utc)),
        ("breaker", "–" if view.breaker is None else view.breaker.replace("_", "-")),
        *((name, "–" if value is None else value) for name, value in view.policy.items()),
    ]
    emit_pairs(shell, pairs)


@action.command()
@click.argument("name", shell_complete=action_names)
@click.option(
    "--open", "to", flag_value="open", help="Open the breaker: no attempt starts until it is closed or reset."
)
@click.option(
    "--close", "to", flag_value="closed", help="Close the breaker and reset its counts: attempts start again."
)
@click.option("--reset", "to", flag_value="half_open", help="Reset the counts; an open breaker grants trials now.")
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
def breaker(name: str, to: str | None, reason: str) -> None:
    """Show the circuit breaker of an action, or open, close or reset it by hand."""
    from holdfast.operations.shared_types import NameRequest
    from holdfast.operations.workers import SteerBreaker, show_action_breaker, steer_breaker

    shell = the_shell()
    if to is None:
        view = shell.ask(show_action_breaker, NameRequest(name=name))
    else:
        view = shell.ask(steer_breaker, SteerBreaker(name=name, to=to, reason=reason))  # type: ignore[arg-type]
    if shell.is_json:
        emit_json(view)
        return
    emit_pairs(shell, _breaker_pairs(shell, view), hues={"state": "" if view.state == "closed" else "yellow"})


def _breaker_pairs(shell: Shell, view: BreakerView) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = [
        ("action", view.action),
        ("state", view.state.replace("_", "-")),
        ("since", moment(view.since, utc=shell.utc)),
        ("counted", f"{view.counted_failures} of {view.counted_attempts} failed in {human(view.window_seconds)}"),
        ("opens at", f"{100 * view.share:g} % of {view.attempts_min} or more, for {human(view.open_seconds)}"),
    ]
    if view.cause:
        pairs.append(("opened by", f"{view.failures} of {view.attempts} failed with {view.cause}"))
    if view.actor:
        pairs.append(("set by", f"{view.actor}: {view.reason or 'no reason given'}"))
    if view.state == "open":
        pairs.append(("next trial", "after a manual close or reset" if view.trial_at is None else age(view.trial_at)))
    if view.state == "half_open":
        pairs.append(("trials", f"{view.running} running, {view.passed} passed of {view.trials}"))
    return pairs
