"""`holdfast effect …`: effects of actions on the outside world, which actions may send them, and their compensation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli.ui.command_tree import Group
from holdfast.cli.ui.completions import action_names, task_ids
from holdfast.cli.ui.output import Column, emit_json, emit_rows, state_column
from holdfast.cli.ui.shell import Shell, the_shell
from holdfast.cli.ui.words import age, hue, one_line, state_text

if TYPE_CHECKING:
    from holdfast.engine.effects.authority import AuthorityRule
    from holdfast.engine.effects.gate import EffectView

EVERY_ACTION_SHOWN = "every action"
REPEATS_SHOWN = 10


@click.group(cls=Group)
def effect() -> None:
    """List, govern and compensate effects."""


@effect.command("list")
@click.option("--task", "task_id", metavar="TASK_ID", help="Only effects of this task.", shell_complete=task_ids)
@click.option("--state", metavar="STATE", help="Only these: pending, unknown, done or refused.")
@click.option("--limit", type=int, default=50, show_default=True, help="At most this many.")
def list_(task_id: str | None, state: str | None, limit: int) -> None:
    """List effects, of the newest tasks first.

    unknown means started, with neither receipt nor refusal: it may have happened. A retry sends it under the same
    idempotency key.
    """
    from holdfast.operations.effects import ListEffects, list_effects

    shell = the_shell()
    request = ListEffects(task_id=task_id, state=state, limit=limit)
    rows, _ = shell.ask_enough(list_effects, request, lambda page: page.effects)
    emit_rows(shell, rows, _columns(), empty="No effects match." if task_id or state else "No effects yet.")


def _columns() -> list[Column[EffectView]]:
    return [
        Column(title="TASK", text=lambda row: row.task_id),
        state_column(),
        Column(title="EFFECT", text=lambda row: row.effect, shrinks=True),
        Column(
            title="KEY",
            text=lambda row: row.user_key or "–",
            plain=lambda row: row.user_key,
            shrinks=True,
            optional=True,
        ),
        Column(title="ATTEMPT", text=lambda row: str(row.attempt), right=True, optional=True),
        Column(title="SENDS", text=lambda row: str(row.sends), right=True, optional=True),
        Column(
            title="SENT", text=lambda row: age(row.sent_at), plain=lambda row: row.sent_at.isoformat(), optional=True
        ),
        Column(title="IDEMPOTENCY KEY", text=lambda row: row.idempotency_key, optional=True),
        Column(title="NOTE", text=_note, stretch=True),
    ]


def _note(row: EffectView) -> str:
    if row.compensated_by is not None:
        return f"undone by task {row.compensated_by}"
    undo = f"can be undone by {row.compensation}" if row.compensation else ""
    return "; ".join(part for part in (one_line(row.message or ""), undo) if part)


def effect_line(row: EffectView) -> str:
    """Return one effect as a sentence: `? effect smtp.send (receipt:7) unknown, sent once by attempt 1`."""
    named = f" ({row.user_key})" if row.user_key else ""
    times = "once" if row.sends == 1 else f"{row.sends} times"
    note = _note(row)
    head = state_text(row.state).split(" ")[0]
    text = f"{head} effect {row.effect}{named} {row.state}, sent {times}, last by attempt {row.attempt}"
    return one_line(f"{text}: {note}" if note else text)


def tell_repeats(shell: Shell, effects: Sequence[EffectView], *, is_dry: bool = False) -> None:
    """Print effects that may repeat; with `is_dry` also how to undo them instead."""
    again = "it would be sent again under the same key" if is_dry else "it is sent again under the same key"
    for effect in effects[:REPEATS_SHOWN]:
        shell.talk(f"{effect_line(effect)}; {again}.")
        if is_dry and effect.compensation is not None and effect.compensated_by is None:
            shell.talk(f"  Or undo it: {undoing(effect)}")
    if len(effects) > REPEATS_SHOWN:
        shell.talk(f"… and {len(effects) - REPEATS_SHOWN} more: holdfast effect list --state unknown")


def tell_undone(shell: Shell, effects: Sequence[EffectView]) -> None:
    """Warn of compensated effects: the code requests them again, and fails there."""
    for effect in effects[:REPEATS_SHOWN]:
        named = f" ({effect.user_key})" if effect.user_key else ""
        shell.talk(
            one_line(
                f"! effect {effect.effect}{named} was undone by task {effect.compensated_by}: a repeated request "
                "under its key fails with effect_compensated. Use another key in the code."
            )
        )


def undoing(row: EffectView) -> str:
    """Return the command that undoes an effect."""
    return f"holdfast effect compensate {row.idempotency_key} --reason TEXT"


@effect.command()
@click.argument("name")
@click.option(
    "--action", metavar="NAME", help="Only this action.  [default: every action]", shell_complete=action_names
)
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
def allow(name: str, action: str | None, reason: str) -> None:
    """Allow an effect for an action, or for every action without a rule of its own.

    The first rule makes the effect governed: from then on, actions without a rule are denied.
    """
    _rule(name, action, reason, is_allowed=True)


@effect.command()
@click.argument("name")
@click.option(
    "--action", metavar="NAME", help="Only this action.  [default: every action]", shell_complete=action_names
)
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
def deny(name: str, action: str | None, reason: str) -> None:
    """Deny an effect for an action, or for every action without a rule of its own."""
    _rule(name, action, reason, is_allowed=False)


def _rule(name: str, action: str | None, reason: str, *, is_allowed: bool) -> None:
    from holdfast.operations.effects import RuleEffect, allow_effect, deny_effect

    shell = the_shell()
    operation = allow_effect if is_allowed else deny_effect
    done = shell.ask(operation, RuleEffect(name=name, action=action or "", reason=reason))
    word = "allowed" if is_allowed else "denied"
    if shell.is_json:
        emit_json(done)
        return
    click.echo(f"{name}\t{action or EVERY_ACTION_SHOWN}\t{word}{'' if done.is_changed else ' already'}")


@effect.command()
def rules() -> None:
    """List which actions may send which effects. An effect without a rule is allowed for every action."""
    from holdfast.operations.effects import list_rules
    from holdfast.operations.shared_types import ListNames

    shell = the_shell()
    columns: list[Column[AuthorityRule]] = [
        Column(title="EFFECT", text=lambda row: row.effect, shrinks=True),
        Column(
            title="ACTION",
            text=lambda row: row.action or EVERY_ACTION_SHOWN,
            plain=lambda row: row.action,
            shrinks=True,
        ),
        Column(title="RULING", text=lambda row: state_text(_word(row)), plain=_word, hue=lambda row: hue(_word(row))),
        Column(title="BY", text=lambda row: row.actor, shrinks=True, optional=True),
        Column(title="WHEN", text=lambda row: age(row.decided_at), plain=lambda row: row.decided_at.isoformat()),
        Column(title="REASON", text=lambda row: row.reason, stretch=True),
    ]
    found = shell.ask_all(list_rules, ListNames(), lambda page: page.rules)
    emit_rows(shell, found, columns, empty="No effect is governed: every action may perform every effect.")


def _word(row: AuthorityRule) -> str:
    return "allowed" if row.is_allowed else "denied"


@effect.command()
@click.argument("idempotency_key")
@click.option("--reason", metavar="TEXT", required=True, help="Reason, recorded in the audit log.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def compensate(idempotency_key: str, reason: str, yes: bool) -> None:
    """Undo an effect with the action registered for it, once.

    Its task must have ended. Repeated, the command prints the same task.
    """
    from holdfast.operations.effects import Compensate, compensate_effect

    shell = the_shell()
    shell.confirm(f"Undo the effect under {idempotency_key}?", yes=yes)
    done = shell.ask(compensate_effect, Compensate(idempotency_key=idempotency_key, reason=reason))
    if shell.is_json:
        emit_json(done)
        return
    click.echo(done.task_id)
    talk = f"Follow it: holdfast task watch {done.task_id}" if done.is_new else "It was requested before."
    shell.talk(f"{done.action} undoes it. {talk}")
