"""Explanation of a node without a task of its own: why it is in its state, and what would move it.

Pure, like `explain`, with the same result type.
"""

from __future__ import annotations

from typing import assert_never

from holdfast.core.explain.gates import Check
from holdfast.core.explain.node_evidence import CauseFacts, NodeEvidence, NodePosition, RunRestrictions, UpstreamFacts
from holdfast.core.explain.phrases import (
    ago,
    and_more,
    cause,
    count_of,
    full_stop,
    one_line,
    what_happened,
)
from holdfast.core.explain.task import Explanation
from holdfast.core.flows.nodes import TriggerRule
from holdfast.core.flows.wait import answers_to, wait_code, waited_for
from holdfast.core.tasks.states import TERMINAL

NAMES_MAX = 5
CHECKS_MAX = 12

_SUCCEEDED = "completed"
_BROKEN = frozenset({"failed", "upstream_failed", "canceled"})


def explain_node(facts: NodeEvidence) -> Explanation:
    """Explain the state of a node."""
    match facts.position:
        case NodePosition.BLOCKED:
            return _blocked(facts)
        case NodePosition.HELD:
            return _held(facts)
        case NodePosition.ITEMS:
            return _items(facts)
        case NodePosition.CHILD:
            return _child(facts)
        case NodePosition.WAIT:
            return _wait(facts)
        case NodePosition.COMPLETED:
            return _over(facts, "completed", "completed", _completed(facts))
        case NodePosition.FAILED:
            return _failed(facts)
        case NodePosition.CANCELED:
            return _over(facts, "canceled", "canceled", f"Canceled with its run{canceled_by(facts.hold)}.")
        case NodePosition.SKIPPED:
            return _skipped(facts)
        case NodePosition.UPSTREAM_FAILED:
            return _upstream_failed(facts)
        case _:
            assert_never(facts.position)


def _blocked(facts: NodeEvidence) -> Explanation:
    waiting = [upstream for upstream in facts.upstreams if upstream.state not in TERMINAL]
    count = f"{len(waiting)} of {count_of(len(facts.upstreams), 'upstream')}"
    headline = f"Blocked: waits for {count}: {_named(waiting)}{_rule(facts.rule)}."
    first = waiting[0].node if waiting else ""
    moves = (f"holdfast run why {facts.place.run_id} --node {first}",) if first else ()
    return Explanation(
        code="waiting_on",
        headline=headline,
        state="blocked",
        checks=(*_checks(facts.upstreams), *_hold_checks(facts.hold)),
        evidence=_belongs(facts),
        moves=moves,
    )


def _rule(rule: TriggerRule) -> str:
    match rule:
        case TriggerRule.ALL_SUCCESS:
            return ""
        case TriggerRule.ALL_DONE:
            return ", whatever their outcome"
        case TriggerRule.ONE_SUCCESS:
            return ", and starts after the first that completes"
        case _:
            assert_never(rule)


def _checks(upstreams: tuple[UpstreamFacts, ...]) -> tuple[Check, ...]:
    """Return each upstream as a check, those that have not ended first."""
    ordered = sorted(upstreams, key=lambda upstream: upstream.state in TERMINAL)
    checks = [
        Check(ok=upstream.state in TERMINAL, text=f"{upstream.node} is {_word(upstream.state)}")
        for upstream in ordered[:CHECKS_MAX]
    ]
    if len(ordered) > CHECKS_MAX:
        rest = ordered[CHECKS_MAX:]
        checks.append(
            Check(ok=all(upstream.state in TERMINAL for upstream in rest), text=f"and {len(rest)} more upstreams")
        )
    return tuple(checks)


def _hold_checks(hold: RunRestrictions) -> tuple[Check, ...]:
    checks = [Check(ok=hold.paused_at is None, text=f"its run is {'' if hold.paused_at else 'not '}paused")]
    if hold.max_active is not None:
        count = f"{hold.active}/{hold.max_active} nodes active"
        checks.append(Check(ok=hold.active < hold.max_active, text=f"its run has room ({count})"))
    return tuple(checks)


def _held(facts: NodeEvidence) -> Explanation:
    hold, run_id = facts.hold, facts.place.run_id
    moves: tuple[str, ...] = ()
    if hold.paused_at is not None:
        code, moves = "run_paused", (f"holdfast run resume {run_id}",)
        headline = f"Held back: {paused_by(hold, run_id)} {ago(facts.at, hold.paused_at)}{full_stop(_why(hold))}"
    elif hold.max_active is not None and hold.active >= hold.max_active:
        code = "run_limit_reached"
        headline = f"Held back: run {run_id} is at its limit of {hold.max_active} active nodes, {hold.active} are."
    else:
        code, headline = "ready", f"Ready: run {run_id} releases it next."
    return Explanation(
        code=code,
        headline=headline,
        state="blocked",
        checks=(*_checks(facts.upstreams), *_hold_checks(hold)),
        evidence=_belongs(facts),
        moves=moves,
    )


def _items(facts: NodeEvidence) -> Explanation:
    assert facts.items is not None
    items = facts.items
    done = items.total - items.pending - items.failed - items.canceled
    parts = [f"{done} of {items.total} done"]
    parts += [f"{items.failed} failed"] if items.failed else []
    parts += [f"{items.canceled} canceled"] if items.canceled else []
    parts.append(f"{items.pending} to go")
    limit = "" if items.concurrency is None else f", at most {items.concurrency} at once"
    evidence = (*_belongs(facts), *_failure_lines(facts))
    return Explanation(
        code="items",
        headline=f"Running as items: {', '.join(parts)}{limit}.",
        state="running",
        evidence=evidence,
        moves=(f"holdfast run watch {facts.place.run_id}",),
    )


def _child(facts: NodeEvidence) -> Explanation:
    assert facts.child is not None
    child = facts.child
    over = f"{child.nodes - child.pending} of {count_of(child.nodes, 'node')} ended"
    return Explanation(
        code="child_run",
        headline=f"Runs {child.flow} as run {child.run_id}, which is {child.state}: {over}.",
        state="running",
        evidence=_belongs(facts),
        moves=(f"holdfast run why {child.run_id}",),
    )


def _wait(facts: NodeEvidence) -> Explanation:
    assert facts.wait is not None
    wait = facts.wait
    asks = (f"prompt: {one_line(wait.prompt)}",) if wait.prompt else ()
    return Explanation(
        code=wait_code(wait),
        headline=f"Waits for {waited_for(wait, facts.at)}.",
        state="running",
        evidence=(*asks, *_belongs(facts)),
        moves=answers_to(wait, facts.place.run_id, facts.place.node),
    )


def _completed(facts: NodeEvidence) -> str:
    if facts.items is not None:
        return f"Completed as {count_of(facts.items.total, 'item')}."
    if facts.child is not None:
        return f"Completed by run {facts.child.run_id} of {facts.child.flow}."
    if facts.wait is not None:
        return "Approved." if facts.wait.is_approval else f"Completed: the event {facts.wait.name} arrived."
    return "Completed."


def _failed(facts: NodeEvidence) -> Explanation:
    evidence: tuple[str, ...] = _belongs(facts)
    if facts.items is not None and facts.items.failed:
        broken = f"{facts.items.failed} of {count_of(facts.items.total, 'item')} failed"
        detail = f", the last one: {cause(facts.failure)}" if facts.failure is not None else ""
        headline = full_stop(f"Failed for good: {broken}{detail}")
    elif facts.failure is not None:
        headline = f"Failed for good: {full_stop(cause(facts.failure))}"
        evidence = (*evidence, f"ended {ago(facts.at, facts.failure.ended_at)}")
    else:
        headline = "Failed for good; its attempts are no longer on record."
    if facts.child is not None:
        evidence = (*evidence, f"run {facts.child.run_id} of {facts.child.flow} is {facts.child.state}")
    moves = (retry_of(facts.place.run_id),)
    return Explanation(code="non_retryable", headline=headline, state="failed", evidence=evidence, moves=moves)


def _skipped(facts: NodeEvidence) -> Explanation:
    skipped = [upstream for upstream in facts.upstreams if upstream.state == "skipped"]
    has_success = any(upstream.state == _SUCCEEDED for upstream in facts.upstreams)
    is_inherited = skipped and (facts.rule is TriggerRule.ALL_SUCCESS or not has_success)
    if is_inherited and facts.rule is not TriggerRule.ALL_DONE:
        was = "was" if len(skipped) == 1 else "were"
        headline = f"Skipped because {and_more([upstream.node for upstream in skipped], NAMES_MAX)} {was} skipped."
    elif facts.condition:
        value = f"; it was {facts.condition_value}" if facts.condition_value else ""
        headline = f"Skipped: its condition does not hold: {facts.condition}{value}."
    elif facts.wait is not None:
        headline = f"Skipped: {facts.wait.name} got no answer in time."
    else:
        headline = "Skipped."
    return _over(facts, "skipped", "skipped", headline)


def _upstream_failed(facts: NodeEvidence) -> Explanation:
    run_id = facts.place.run_id
    headline = "Did not run: " + blamed(facts.cause)
    return Explanation(
        code="upstream_failed",
        headline=headline,
        state="upstream_failed",
        checks=_checks(facts.upstreams) if not facts.cause else (),
        evidence=_belongs(facts),
        moves=(retry_of(run_id),) if facts.cause is None or facts.cause.state == "failed" else (),
    )


def _over(facts: NodeEvidence, code: str, state: str, headline: str) -> Explanation:
    return Explanation(code=code, headline=headline, state=state, evidence=_belongs(facts))


def blamed(found: CauseFacts | None) -> str:
    """Describe whose failure it was: `render failed: OSError: no space left.`"""
    if found is None:
        return "an upstream did not complete."
    if found.state == "canceled":
        return f"{found.node} was canceled."
    return full_stop(f"{found.node} {what_happened(found.failure)}")


def paused_by(hold: RunRestrictions, run_id: str) -> str:
    return f"{hold.paused_by or 'an operator'} paused run {run_id}"


def canceled_by(hold: RunRestrictions) -> str:
    """Describe by whom and why a run was canceled: ` by anna: wrong day`."""
    who = f" by {hold.canceled_by}" if hold.canceled_by else ""
    return f"{who}: {one_line(hold.cancel_reason).rstrip('.')}" if hold.cancel_reason else f"{who}, without a reason"


def retry_of(run_id: str) -> str:
    return f'holdfast run retry {run_id} --reason "…"'


def _why(hold: RunRestrictions) -> str:
    return f": {one_line(hold.paused_reason)}" if hold.paused_reason else " without giving a reason"


def _named(upstreams: list[UpstreamFacts]) -> str:
    return and_more([f"{upstream.node} ({_word(upstream.state)})" for upstream in upstreams], NAMES_MAX)


def _word(state: str) -> str:
    return state.replace("_", " ")


def _belongs(facts: NodeEvidence) -> tuple[str, ...]:
    return (str(facts.place),)


def _failure_lines(facts: NodeEvidence) -> tuple[str, ...]:
    return () if facts.failure is None else (f"last failure: {cause(facts.failure)}",)
