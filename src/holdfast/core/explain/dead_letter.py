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
        letter.state in UNDER_WAY
        and letter.can_retry
        and letter.campaign is None
        and letter.dispatches < letter.dispatches_max
        for letter in facts.letters
    )


def letter_lines(facts: TaskFacts) -> tuple[str, ...]:
    """Return one sentence for each relevant dead letter, the most important first."""
    under_way = [letter for letter in facts.letters if letter.state in UNDER_WAY]
    ignored = [letter for letter in facts.letters if letter.state == DeadLetterState.IGNORED]
    is_failed = facts.position is Position.FAILED
    opened = [letter for letter in facts.letters if letter.state == DeadLetterState.OPEN and is_failed]
    # An open dead letter next to a retrying one belongs to the same task: the sweep resolves both.
    said = under_way or [*ignored, *opened]
    return tuple(letter_sentence(letter, at=facts.at, is_failed=is_failed) for letter in said)


def letter_moves(facts: TaskFacts) -> tuple[str, ...]:
    """Return the command that shows who ignored the dead letter, or the campaign that it waits for."""
    shown = [letter for letter in facts.letters if letter.state != "open" or letter.campaign is not None][:1]
    return tuple(
        f"holdfast dead show {letter.dead_letter_id}"
        if letter.campaign is None
        else f"holdfast campaign show {letter.campaign.campaign_id}"
        for letter in shown
    )


def letter_sentence(letter: DeadLetterFacts, *, at: datetime, is_failed: bool) -> str:
    """Describe one dead letter at one moment."""
    name = f"Dead letter {letter.dead_letter_id}"
    match letter.state:
        case DeadLetterState.RETRY_REQUESTED | DeadLetterState.RETRYING:
            return f"{name} {_under_way(letter, at, is_failed=is_failed)}"
        case DeadLetterState.IGNORED:
            return f"{name} {_ignored(letter, at)}"
        case _:
            return f"{name} is open{_campaign(letter.campaign)}."


def _under_way(letter: DeadLetterFacts, at: datetime, *, is_failed: bool) -> str:
    asked = f"{letter.actor} requested its retry {ago(at, letter.changed_at)}"
    asked += f" ({one_line(letter.reason)})" if letter.reason else ""
    is_sent = letter.state == DeadLetterState.RETRYING
    count = f"dispatch {letter.dispatches} of {letter.dispatches_max}"
    if not is_failed:
        by = "" if letter.campaign is None else f" in {_named(letter.campaign)}"
        return f"is being retried{by}: {count} by {letter.actor}." if is_sent else f"is to be retried: {asked}."
    if not letter.can_retry:
        return "may not be retried, so the sweep skips it."
    if letter.campaign is not None and is_sent:
        return f"is being retried in {_named(letter.campaign)}, which has not yet recorded that it failed again."
    if letter.dispatches >= letter.dispatches_max:
        return f"was dispatched {letter.dispatches} times; the sweep parks it next."
    follows = f"dispatch {letter.dispatches + 1} of {letter.dispatches_max} follows {_when(letter.next_at, at)}"
    return f"is being retried: {count} failed; {follows}." if is_sent else f"is to be retried: {asked}; {follows}."


def _when(next_at: datetime | None, at: datetime) -> str:
    if next_at is None or next_at <= at:
        return "at the sweep's next pass"
    return f"in {human(seconds_between(next_at, at))}, at {clock(next_at)}"


def _ignored(letter: DeadLetterFacts, at: datetime) -> str:
    if letter.disposition == Disposition.RETRY_EXHAUSTED:
        return f"was parked {ago(at, letter.changed_at)}: {full_stop(one_line(letter.reason))}"
    word = "abandoned" if letter.disposition == Disposition.ABANDONED else "ignored"
    if letter.disposition == Disposition.RETRY_FAILED and letter.campaign is not None:
        return f"came back from {_named(letter.campaign)} {ago(at, letter.changed_at)}: it failed again."
    why = f": {one_line(letter.reason)}" if letter.reason else ", without a reason"
    return f"was {word} by {letter.actor} {ago(at, letter.changed_at)}{full_stop(why)}"


def _campaign(campaign: CampaignFacts | None) -> str:
    if campaign is None:
        return ": no action was taken on it yet"
    return f" and in {_named(campaign)}, which {_HELD_BY_CAMPAIGN.get(campaign.state, 'is over')}"


def _named(campaign: CampaignFacts) -> str:
    name = f" ({one_line(campaign.name)})" if campaign.name else ""
    return f"campaign {campaign.campaign_id}{name}"
