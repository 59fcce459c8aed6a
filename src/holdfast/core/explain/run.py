"""Explanation of a run: why it is in its state, and what would move it, as a summary of its nodes. Pure."""

from __future__ import annotations

from typing import assert_never

from holdfast.core.explain.node import NAMES_MAX, blamed, canceled_by, paused_by, retry_of
from holdfast.core.explain.node_evidence import RunFacts
from holdfast.core.explain.phrases import ago, and_more, count_of, full_stop, one_line, seconds_between
from holdfast.core.explain.task import Explanation
from holdfast.core.flows.run_state import RunState
from holdfast.core.flows.wait import answers_to, wait_code, waited_for
from holdfast.core.values.duration import human

_ACTIVE = ("running", "queued", "retrying")


def explain_run(facts: RunFacts) -> Explanation:
    """Explain the state of a run."""
    match facts.state:
        case RunState.QUEUED:
            return _of(
                facts, "queued", f"Queued: none of its {count_of(facts.nodes, 'node')} has begun.", _watch(facts)
            )
        case RunState.RUNNING:
            return _canceling(facts) if facts.hold.canceled_at is not None else _running(facts)
        case RunState.PAUSED:
            return _paused(facts)
        case RunState.BLOCKED:
            going = f"still under way: {_going(facts)}" if _going(facts) else "nothing else is under way"
            headline = f"Blocked by a failure: {blamed(facts.cause).rstrip('.')}; {going}."
            return _of(facts, "failure", headline, (retry_of(facts.run_id),))
        case RunState.COMPLETED:
            assert facts.ended_at is not None
            headline = f"Completed {ago(facts.at, facts.ended_at)} in {_took(facts)}: {_tally(facts)}."
            return _of(facts, "completed", headline, (f"holdfast run show {facts.run_id}",))
        case RunState.FAILED:
            assert facts.ended_at is not None
            headline = f"Failed {ago(facts.at, facts.ended_at)} after {_took(facts)}: {blamed(facts.cause)}"
            return _of(facts, "failed", headline, (f"holdfast run graph {facts.run_id}", retry_of(facts.run_id)))
        case RunState.CANCELED:
            assert facts.ended_at is not None
            headline = f"Canceled {ago(facts.at, facts.ended_at)}{canceled_by(facts.hold)}."
            return _of(facts, "canceled", headline, (f"holdfast run start --clone {facts.run_id}",))
        case _:
            assert_never(facts.state)


def _running(facts: RunFacts) -> Explanation:
    if facts.waits and facts.count(*_ACTIVE) == len(facts.waits):
        return _waiting(facts)
    age = human(max(0.0, seconds_between(facts.at, facts.created_at)))
    going = _going(facts)
    headline = f"Running for {age}: {_over(facts)}{f', {going}' if going else ''}."
    if not going and facts.held:
        headline = f"Running for {age}: {_over(facts)}, {count_of(facts.held, 'node')} held back."
    return _of(facts, "running", headline, _watch(facts))


def _waiting(facts: RunFacts) -> Explanation:
    """Explain a run in which every active node waits for a person or an external event."""
    node, first = facts.waits[0]
    more = f" ({len(facts.waits) - 1} more)" if len(facts.waits) > 1 else ""
    headline = f"Waits at {node}{more} for {waited_for(first, facts.at)}; {_over(facts)}."
    return _of(facts, wait_code(first), headline, _watch(facts))


def _canceling(facts: RunFacts) -> Explanation:
    going = _going(facts)
    waits = f"; it ends when what is under way stops: {going}" if going else "; it is about to end"
    headline = f"Being canceled{canceled_by(facts.hold)}{waits}."
    return _of(facts, "cancel_requested", headline, _watch(facts))


def _paused(facts: RunFacts) -> Explanation:
    hold = facts.hold
    assert hold.paused_at is not None
    why = f": {one_line(hold.paused_reason)}" if hold.paused_reason else " without giving a reason"
    headline = f"Paused: {paused_by(hold, facts.run_id)} {ago(facts.at, hold.paused_at)}{full_stop(why)}"
    return _of(facts, "run_paused", headline, (f"holdfast run resume {facts.run_id}",))


def _of(facts: RunFacts, code: str, headline: str, moves: tuple[str, ...]) -> Explanation:
    evidence = [f"{facts.flow} version {facts.version}, {_tally(facts)}"]
    if facts.held:
        evidence.append(f"{count_of(facts.held, 'node')} held back")
    if facts.front:
        evidence.append(facts.front)
    if facts.state in (RunState.QUEUED, RunState.RUNNING, RunState.BLOCKED) and facts.hold.canceled_at is None:
        evidence += [f"{node}: waits for {waited_for(wait, facts.at)}" for node, wait in facts.waits]
        moves = (*(move for node, wait in facts.waits for move in answers_to(wait, facts.run_id, node)), *moves)
    if facts.cause is not None and facts.cause.failure is not None:
        evidence.append(facts.cause.failure.sentence)
    if facts.generation > 1:
        evidence.append(f"run again {count_of(facts.generation - 1, 'time')}")
    evidence += [line for line in (facts.parent, facts.original) if line]
    return Explanation(code=code, headline=headline, state=facts.state, evidence=tuple(evidence), moves=moves)


def _watch(facts: RunFacts) -> tuple[str, ...]:
    return (f"holdfast run watch {facts.run_id}",)


def _over(facts: RunFacts) -> str:
    over = facts.nodes - facts.count("blocked", *_ACTIVE)
    return f"{over} of {count_of(facts.nodes, 'node')} ended"


def _going(facts: RunFacts) -> str:
    """Describe the active nodes: `2 running (score, render), 1 retrying (pdf)`."""
    parts = []
    for state in _ACTIVE:
        if count := facts.count(state):
            names = list(facts.named(state))
            shown = and_more(names, NAMES_MAX, total=count)
            parts.append(f"{count} {state} ({shown})")
    return ", ".join(parts)


def _tally(facts: RunFacts) -> str:
    """Return the counts by state: `7 completed, 1 skipped`."""
    return ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in facts.counts if count)


def _took(facts: RunFacts) -> str:
    assert facts.ended_at is not None
    return human(max(0.0, seconds_between(facts.ended_at, facts.created_at)))
