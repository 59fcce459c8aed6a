"""Explanation of a task: why it is in its state and what would move it, for SDK, CLI, API and dashboard.

Pure: facts in, sentences out. For waiting tasks every condition is checked in order; the first one not met is the
headline. Nothing is guessed: a sentence states only what the facts show.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from holdfast.core.dead_letters.dead_letter import is_retry_ceiling_reached
from holdfast.core.explain.dead_letter import is_in_hand, letter_lines, letter_moves
from holdfast.core.explain.effects import effect_lines
from holdfast.core.explain.evidence import LaunchFacts, Position, TaskFacts
from holdfast.core.explain.gates import Check, gates_of, quota_over, standing_gates_of
from holdfast.core.explain.phrases import (
    ago,
    behind,
    by_whom,
    cause,
    clock,
    count_of,
    full_stop,
    named,
    one_line,
    seconds_between,
    what_happened,
)
from holdfast.core.launching import LAUNCHES_MAX
from holdfast.core.values.duration import human

FRESH_SECONDS = 2.0
"""A wait up to this long needs no other cause than the delay of wake-ups and polls."""

OVERDUE_SECONDS = 5.0
"""How late a repair pass may be before the explanation reports it missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The explanation; `str()` is the headline. `code` is for programs, `moves` are commands to run."""

    code: str
    headline: str
    state: str
    checks: tuple[Check, ...] = ()
    evidence: tuple[str, ...] = ()
    moves: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.headline


def explain(facts: TaskFacts) -> Explanation:
    """Explain the state of a task, with its dead letters, its run, and its unknown or undone effects."""
    explanation = _stand(facts)
    if facts.letters and facts.position is not Position.FAILED:
        explanation = replace(explanation, evidence=(*explanation.evidence, *letter_lines(facts)))
    if facts.place is not None:
        explanation = replace(explanation, evidence=(*explanation.evidence, str(facts.place)))
    if not facts.unknown_effects and not facts.undone_effects:
        return explanation
    return replace(
        explanation,
        evidence=(*explanation.evidence, *effect_lines(facts)),
        moves=(*explanation.moves, f"holdfast effect list --task {facts.task_id}"),
    )


def _stand(facts: TaskFacts) -> Explanation:
    match facts.position:
        case Position.QUEUED:
            return _queued(facts)
        case Position.DELAYED:
            return _with_gates(facts, _delayed(facts))
        case Position.RESERVED:
            return _reserved(facts)
        case Position.RUNNING:
            return _running(facts)
        case Position.RETRYING:
            return _with_gates(facts, _retrying(facts))
        case Position.FAILED:
            return _failed(facts)
        case Position.CANCELED:
            return _canceled(facts)
        case Position.COMPLETED:
            return _completed(facts)
        case _:
            assert_never(facts.position)


def _queued(facts: TaskFacts) -> Explanation:
    gates = gates_of(facts)
    checks = (Check(ok=True, text="it is due"), *(gate.check for gate in gates))
    came = "submitted" if facts.place is None else "ready since"
    evidence = (f"{came} {ago(facts.at, facts.created_at)}", *_carrier(facts), *_history(facts))
    for gate in gates:
        if not gate.check.ok:
            return Explanation(
                code=gate.code,
                headline=gate.headline,
                state="queued",
                checks=checks,
                evidence=evidence,
                moves=gate.moves,
            )
    if facts.launch is not None:
        return Explanation(
            code="ready_to_launch",
            headline=f"Ready: launcher {facts.launch.launcher} starts a worker for it next.",
            state="queued",
            checks=checks,
            evidence=evidence,
        )
    # The time at which a delayed, retried or revived task became claimable is not recorded, so only the submission has
    # an age.
    if seconds_between(facts.at, facts.created_at) <= FRESH_SECONDS:
        headline = f"Queued {ago(facts.at, facts.created_at)}; a worker should claim it within moments."
    else:
        headline = f"Ready: nothing holds it back{behind(facts)}; a worker claims it next."
    return Explanation(code="ready", headline=headline, state="queued", checks=checks, evidence=evidence)


def _with_gates(facts: TaskFacts, until_due: Explanation) -> Explanation:
    """Add the conditions that would delay a task that is due later, as far as they do not change by themselves."""
    gates = standing_gates_of(facts)
    shut = [gate for gate in gates if not gate.check.ok]
    if not shut:
        return until_due
    return replace(
        until_due,
        headline=f"{until_due.headline} {shut[0].headline}",
        checks=(*until_due.checks, *(gate.check for gate in gates)),
        moves=(*shut[0].moves, *until_due.moves),
    )


def _carrier(facts: TaskFacts) -> tuple[str, ...]:
    """Mention an unavailable carrier. It blocks nothing, but makes the start later."""
    if facts.carrier is None:
        return ()
    away = human(seconds_between(facts.at, facts.carrier.away_since))
    return (f"wake-ups over {facts.carrier.name} have been unavailable for {away}: workers find it at their next poll",)


def _delayed(facts: TaskFacts) -> Explanation:
    assert facts.due_at is not None
    left = seconds_between(facts.due_at, facts.at)
    moves = (f"holdfast task cancel {facts.task_id}",)
    evidence = (f"submitted {ago(facts.at, facts.created_at)}",)
    if facts.launch is not None and facts.launch.failures and left >= -OVERDUE_SECONDS:
        return _relaunching(facts, facts.launch, left)
    if left >= -OVERDUE_SECONDS:
        when = f"it becomes due in {human(left)}" if left > 0 else "it is due now"
        return Explanation(
            code="scheduled_for",
            headline=f"Not due yet: {when}, at {clock(facts.due_at)}." if left > 0 else f"Queued: {when}.",
            state="queued",
            checks=(Check(ok=left <= 0, text=when),),
            evidence=evidence,
            moves=moves,
        )
    return _unattended(facts, f"It was due {human(-left)} ago", "queued", evidence)


def _relaunching(facts: TaskFacts, launch: LaunchFacts, left: float) -> Explanation:
    assert facts.due_at is not None
    when = f"the next try is in {human(left)}, at {clock(facts.due_at)}" if left > 0 else "the next try is due now"
    tries = f"{count_of(launch.failures, 'time')} of {LAUNCHES_MAX}"
    what = f"launching attempt {facts.attempt + 1} with {launch.launcher} failed {tries}"
    return Explanation(
        code="launch_failed",
        headline=f"No worker could be launched: {what}; {when}.",
        state="queued",
        checks=(Check(ok=left <= 0, text=when),),
        evidence=(f"the launcher said: {one_line(launch.error)}", *_history(facts)),
        moves=("holdfast launch list", f"holdfast task cancel {facts.task_id}"),
    )


def _reserved(facts: TaskFacts) -> Explanation:
    assert facts.lease_expires_at is not None and facts.started_at is not None
    left = seconds_between(facts.lease_expires_at, facts.at)
    evidence = (f"reserved {ago(facts.at, facts.started_at)}", *_history(facts))
    if left < -OVERDUE_SECONDS:
        return _unattended(facts, f"Its launched worker should have attached {human(-left)} ago", "queued", evidence)
    time = f"it has {human(left)} left to do so" if left > 0 else "its time is up"
    if facts.launch is not None and facts.launch.launched_at is None:
        since = ago(facts.at, facts.started_at)
        headline = f"Being launched with {facts.launch.launcher} for attempt {facts.attempt}, since {since}."
        return Explanation(code="launching", headline=headline, state="queued", evidence=evidence)
    return Explanation(
        code="reserved",
        headline=f"Reserved for attempt {facts.attempt}: a worker was launched and has not attached yet; {time}.",
        state="queued",
        evidence=evidence,
        moves=(f"holdfast task cancel {facts.task_id}",),
    )


def _running(facts: TaskFacts) -> Explanation:
    assert facts.started_at is not None and facts.lease_expires_at is not None
    worker = facts.worker.name if facts.worker else "an unknown worker"
    ran = human(seconds_between(facts.at, facts.started_at))
    lease = seconds_between(facts.lease_expires_at, facts.at)
    said = f", {one_line(facts.progress)}" if facts.progress else ""
    moves: tuple[str, ...] = (f"holdfast task cancel {facts.task_id}",)
    if lease < -OVERDUE_SECONDS:
        return _unattended(facts, f"Its lease on {worker} expired {human(-lease)} ago", "running", _beats(facts))
    if lease <= 0:
        code = "lease_expired"
        headline = f"Attempt {facts.attempt} on {worker} lost its lease {human(-lease)} ago; it is about to be reaped."
    elif facts.cancel_at is not None:
        code, left = "cancel_requested", seconds_between(facts.cancel_at, facts.at)
        force = f"in {human(left)} it is stopped by force" if left > 0 else "it is being stopped by force"
        headline = f"Stop requested{by_whom(facts)}: attempt {facts.attempt} on {worker} has not ended yet; {force}."
        moves = (f"holdfast task watch {facts.task_id}",)
    elif (unheard := _unheard_seconds(facts)) > 2 * lease:
        # A lease is longer than three heartbeat intervals: after two thirds of it without a heartbeat, two are missing.
        code = "heartbeat_late"
        headline = (
            f"Attempt {facts.attempt} on {worker} last sent a heartbeat {human(unheard)} ago; without another "
            f"within {human(lease)}, it counts as lost."
        )
        moves = ("holdfast worker list", *moves)
    elif facts.worker is not None and facts.worker.state == "draining":
        code = "worker_draining"
        headline = (
            f"Running for {ran}{said}: attempt {facts.attempt} on {worker}, which is draining and finishes it first."
        )
    else:
        code = "leased_healthy"
        headline = f"Running for {ran}{said}: attempt {facts.attempt} on {worker}."
    return Explanation(code=code, headline=headline, state="running", evidence=_beats(facts), moves=moves)


def _unheard_seconds(facts: TaskFacts) -> float:
    """Return the seconds since the worker was last heard from; a claim counts as well as a heartbeat."""
    assert facts.started_at is not None
    heard = facts.started_at if facts.worker is None else max(facts.worker.beat_at, facts.started_at)
    return 0.0 if facts.worker is None else seconds_between(facts.at, heard)


def _beats(facts: TaskFacts) -> tuple[str, ...]:
    """Return evidence about the running attempt: heartbeat, lease, timeout and progress."""
    assert facts.started_at is not None and facts.lease_expires_at is not None
    lines = []
    if facts.worker is not None:
        lines.append(f"{named(facts.worker)} last sent a heartbeat {ago(facts.at, facts.worker.beat_at)}")
    lease = seconds_between(facts.lease_expires_at, facts.at)
    lines.append(f"lease expires in {human(lease)}" if lease > 0 else f"lease expired {human(-lease)} ago")
    if facts.timeout_seconds is None:
        lines.append("no execution timeout")
    else:
        left = facts.timeout_seconds - seconds_between(facts.at, facts.started_at)
        whole = human(facts.timeout_seconds)
        lines.append(
            f"timeout in {human(left)} of {whole}" if left > 0 else f"{human(-left)} past its timeout of {whole}"
        )
    if facts.progress:
        lines.append(f"progress: {one_line(facts.progress)}")
    return (*lines, *_history(facts))


def _retrying(facts: TaskFacts) -> Explanation:
    assert facts.due_at is not None
    failure, left = facts.failure, seconds_between(facts.due_at, facts.at)
    what = what_happened(failure)
    moves = (f"holdfast task retry {facts.task_id}", f"holdfast task cancel {facts.task_id}")
    evidence = (
        *(
            ()
            if failure is None
            else (failure.sentence, f"class {failure.known_as or failure.reason}, by {failure.rule}")
        ),
    )
    if left < -OVERDUE_SECONDS:
        return _unattended(facts, f"Its retry was due {human(-left)} ago", "retrying", (what, *evidence))
    when = f"in {human(left)}" if left > 0 else "now"
    if (held := quota_over(facts)) is not None:
        return Explanation(
            code="quota_used_up",
            headline=f"Attempt {facts.attempt} {what}; {_budget(facts)} is held back: {held}.",
            state="retrying",
            checks=(
                Check(ok=True, text="its backoff is over"),
                Check(ok=False, text=f"{held}; it is checked again {when}"),
            ),
            evidence=evidence,
            moves=moves,
        )
    follows = "follows" if all(gate.check.ok for gate in standing_gates_of(facts)) else "is due"
    return Explanation(
        code="backoff",
        headline=f"Attempt {facts.attempt} {what}; {_budget(facts)} {follows} {when}.",
        state="retrying",
        checks=(Check(ok=left <= 0, text=f"backoff ends {when}"),),
        evidence=evidence,
        moves=moves,
    )


def _failed(facts: TaskFacts) -> Explanation:
    failure, letters = facts.failure, letter_lines(facts)
    tries = count_of(facts.attempt, "attempt")
    is_back_soon = is_in_hand(facts)
    failed = "Failed" if is_back_soon else "Failed for good"
    evidence: tuple[str, ...] = ()
    if failure is None:
        headline, code = f"{failed} after {tries}; its attempts are no longer on record.", "failed"
    else:
        headline = f"{failed} after {tries}: {full_stop(cause(failure))} {failure.sentence}".rstrip()
        code = "attempts_exhausted" if failure.reason.endswith("_exhausted") else "non_retryable"
        evidence = (
            f"attempt {failure.attempt} {what_happened(failure)}",
            f"class {failure.known_as or failure.reason}, by {failure.rule}",
        )
    if facts.ended_at is not None:
        evidence = (*evidence, f"ended {ago(facts.at, facts.ended_at)}")
    return Explanation(
        code="redrive_waits" if is_back_soon else code,
        headline=" ".join((headline, *letters[:1])),
        state="failed",
        evidence=(*evidence, *letters[1:]),
        moves=(
            f"holdfast task show {facts.task_id}",
            *letter_moves(facts),
            *(() if is_back_soon else (_again(facts),)),
        ),
    )


def _again(facts: TaskFacts) -> str:
    """Return the command that runs a failed task again; once the budget is spent, only a re-drive can."""
    if facts.place is not None:
        return f'holdfast run retry {facts.place.run_id} --reason "…"'
    if is_retry_ceiling_reached(retries=facts.retries, losses=facts.losses, max_retries=facts.max_retries):
        return f"holdfast dead redrive --task {facts.task_id} --reason TEXT"
    return f"holdfast task retry {facts.task_id}"


def _canceled(facts: TaskFacts) -> Explanation:
    assert facts.ended_at is not None
    why = f": {one_line(facts.reason)}" if facts.reason else ", without a reason"
    tries = f"after {count_of(facts.attempt, 'attempt')}" if facts.attempt else "before it started"
    return Explanation(
        code="canceled",
        headline=f"Canceled {ago(facts.at, facts.ended_at)}{by_whom(facts)} {tries}{full_stop(why)}",
        state="canceled",
        evidence=_history(facts),
        moves=(
            f"holdfast task submit {facts.action} --input …"
            if facts.place is None
            else f"holdfast run start --clone {facts.place.run_id}",
        ),
    )


def _completed(facts: TaskFacts) -> Explanation:
    assert facts.ended_at is not None and facts.started_at is not None
    took = human(seconds_between(facts.ended_at, facts.started_at))
    output = f"output: {count_of(facts.output_bytes, 'byte')} of JSON" if facts.output_bytes else "no output"
    worker = (f"ran on {named(facts.worker)}",) if facts.worker else ()
    return Explanation(
        code="completed",
        headline=f"Completed {ago(facts.at, facts.ended_at)} in {took}, at attempt {facts.attempt}.",
        state="completed",
        evidence=(output, *worker, *_history(facts)),
        moves=(f"holdfast task show {facts.task_id}",),
    )


def _unattended(facts: TaskFacts, happened: str, state: str, evidence: tuple[str, ...]) -> Explanation:
    """Explain that a maintenance loop is overdue, so the maintenance loops do not seem to run."""
    return Explanation(
        code="loops_missing",
        headline=f"{happened} and nothing acted on it: no server seems to run the maintenance loops.",
        state=state,
        checks=(Check(ok=False, text="the maintenance loops run"),),
        evidence=evidence,
        moves=("holdfast server",),
    )


def _history(facts: TaskFacts) -> tuple[str, ...]:
    """Describe the last failed attempt of a task that continues or ended otherwise."""
    failure = facts.failure
    if failure is None:
        return ()
    return (f"attempt {failure.attempt}, {ago(facts.at, failure.ended_at)}, {what_happened(failure)}", failure.sentence)


def _budget(facts: TaskFacts) -> str:
    if facts.failure is not None and facts.failure.state == "lost":
        return f"retry {facts.losses} of {facts.max_losses} after a loss"
    return f"retry {facts.retries} of {facts.max_retries}"
