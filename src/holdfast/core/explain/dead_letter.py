"""Explanations of a task's dead letters: who is handling one, when it is retried, or who ignored it and why.

Pure. A task may have several dead letters, because each final failure opens one. One that is being retried comes first,
then ignored ones; an open one is mentioned only if none is being retried.
"""

from __future__ import annotations

from datetime import datetime

from holdfast.core.dead_letters.dead_letter import DeadLetterState, Disposition
from holdfast.core.explain.evidence import CampaignFacts, DeadLetterFacts, Position, TaskFacts
from holdfast.core.explain.phrases import ago, clock, full_stop, one_line, seconds_between
from holdfast.core.values.duration import human

UNDER_WAY = (DeadLetterState.RETRY_REQUESTED, DeadLetterState.RETRYING)
_HELD_BY_CAMPAIGN = {
    "awaiting_approval": "waits for an approval",
    "awaiting_version": "waits for a newer worker",
    "canary": "runs its canary",
    "ramp": "releases it in its turn",
    "stopped": "was stopped",
}


def is_in_hand(facts: TaskFacts) -> bool:
    """Return whether the sweep will re-drive a failed task by itself."""
    return facts.position is Position.FAILED and any(
        dead_letter.state in UNDER_WAY
        and dead_letter.can_retry
        and dead_letter.campaign is None
        and dead_letter.dispatches < dead_letter.dispatches_max
        for dead_letter in facts.letters
    )


def letter_lines(facts: TaskFacts) -> tuple[str, ...]:
    """Return one sentence for each relevant dead letter, the most important first."""
    under_way = [dead_letter for dead_letter in facts.letters if dead_letter.state in UNDER_WAY]
    ignored = [dead_letter for dead_letter in facts.letters if dead_letter.state == DeadLetterState.IGNORED]
    is_failed = facts.position is Position.FAILED
    opened = [dead_letter for dead_letter in facts.letters if dead_letter.state == DeadLetterState.OPEN and is_failed]
    # An open dead letter next to a retrying one belongs to the same task: the sweep resolves both.
    said = under_way or [*ignored, *opened]
    return tuple(letter_sentence(dead_letter, at=facts.at, is_failed=is_failed) for dead_letter in said)


def letter_moves(facts: TaskFacts) -> tuple[str, ...]:
    """Return the command that shows who ignored the dead letter, or the campaign that it waits for."""
    shown = [
        dead_letter for dead_letter in facts.letters if dead_letter.state != "open" or dead_letter.campaign is not None
    ][:1]
    return tuple(
        f"holdfast dead show {dead_letter.dead_letter_id}"
        if dead_letter.campaign is None
        else f"holdfast campaign show {dead_letter.campaign.campaign_id}"
        for dead_letter in shown
    )


def letter_sentence(dead_letter: DeadLetterFacts, *, at: datetime, is_failed: bool) -> str:
    """Describe one dead letter at one moment."""
    name = f"Dead letter {dead_letter.dead_letter_id}"
    match dead_letter.state:
        case DeadLetterState.RETRY_REQUESTED | DeadLetterState.RETRYING:
            return f"{name} {_under_way(dead_letter, at, is_failed=is_failed)}"
        case DeadLetterState.IGNORED:
            return f"{name} {_ignored(dead_letter, at)}"
        case _:
            return f"{name} is open{_campaign(dead_letter.campaign)}."


def _under_way(dead_letter: DeadLetterFacts, at: datetime, *, is_failed: bool) -> str:
    requested = f"{dead_letter.actor} requested its retry {ago(at, dead_letter.changed_at)}"
    requested += f" ({one_line(dead_letter.reason)})" if dead_letter.reason else ""
    is_sent = dead_letter.state == DeadLetterState.RETRYING
    count = f"dispatch {dead_letter.dispatches} of {dead_letter.dispatches_max}"
    if not is_failed:
        by = "" if dead_letter.campaign is None else f" in {_named(dead_letter.campaign)}"
        return (
            f"is being retried{by}: {count} by {dead_letter.actor}." if is_sent else f"is to be retried: {requested}."
        )
    if not dead_letter.can_retry:
        return "may not be retried, so the sweep skips it."
    if dead_letter.campaign is not None and is_sent:
        return f"is being retried in {_named(dead_letter.campaign)}, which has not yet recorded that it failed again."
    if dead_letter.dispatches >= dead_letter.dispatches_max:
        return f"was dispatched {dead_letter.dispatches} times; the sweep parks it next."
    number = f"dispatch {dead_letter.dispatches + 1} of {dead_letter.dispatches_max}"
    follows = f"{number} follows {_when(dead_letter.next_at, at)}"
    return f"is being retried: {count} failed; {follows}." if is_sent else f"is to be retried: {requested}; {follows}."


def _when(next_at: datetime | None, at: datetime) -> str:
    if next_at is None or next_at <= at:
        return "at the sweep's next pass"
    return f"in {human(seconds_between(next_at, at))}, at {clock(next_at)}"


def _ignored(dead_letter: DeadLetterFacts, at: datetime) -> str:
    if dead_letter.disposition == Disposition.RETRY_EXHAUSTED:
        return f"was parked {ago(at, dead_letter.changed_at)}: {full_stop(one_line(dead_letter.reason))}"
    word = "abandoned" if dead_letter.disposition == Disposition.ABANDONED else "ignored"
    if dead_letter.disposition == Disposition.RETRY_FAILED and dead_letter.campaign is not None:
        return f"came back from {_named(dead_letter.campaign)} {ago(at, dead_letter.changed_at)}: it failed again."
    why = f": {one_line(dead_letter.reason)}" if dead_letter.reason else ", without a reason"
    return f"was {word} by {dead_letter.actor} {ago(at, dead_letter.changed_at)}{full_stop(why)}"


def _campaign(campaign: CampaignFacts | None) -> str:
    if campaign is None:
        return ": no action was taken on it yet"
    return f" and in {_named(campaign)}, which {_HELD_BY_CAMPAIGN.get(campaign.state, 'is over')}"


def _named(campaign: CampaignFacts) -> str:
    name = f" ({one_line(campaign.name)})" if campaign.name else ""
    return f"campaign {campaign.campaign_id}{name}"
