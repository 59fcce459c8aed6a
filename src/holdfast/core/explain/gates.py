"""Conditions between a queued task and its next attempt, in order, each with a headline and commands if it is
not met.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.explain.evidence import BreakerFacts, LaunchFacts, TaskFacts, TenantFacts
from holdfast.core.explain.phrases import (
    ago,
    behind,
    clock,
    count_of,
    fate,
    full_stop,
    named,
    one_line,
    seconds_between,
)
from holdfast.core.values.duration import human


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One condition that a waiting task must meet."""

    ok: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitCondition:
    """A condition, and the headline and commands to show if it is the first that is not met."""

    check: Check
    code: str = ""
    headline: str = ""
    moves: tuple[str, ...] = ()


def gates_of(facts: TaskFacts) -> tuple[WaitCondition, ...]:
    """Return every condition between a queued task and its next attempt; the first one not met is the reason."""
    breaker = () if facts.breaker is None else (_gate_breaker(facts, facts.breaker),)
    tenant = () if facts.tenant is None else (_gate_tenant(facts, facts.tenant),)
    limits = (_gate_limit(facts), _gate_rate(facts), *tenant)
    if facts.launch is not None:
        served = (_gate_launcher(facts, facts.launch), _gate_launched_for(facts, facts.launch))
        launcher = (*served, *limits, _gate_launch_slots(facts.launch))
        return (_gate_pause(facts), *breaker, *launcher)
    gates = (_gate_pause(facts), *breaker, _gate_worker(facts), *limits)
    return (*gates, _gate_slots(facts)) if facts.crew.able else gates


def standing_gates_of(facts: TaskFacts) -> tuple[WaitCondition, ...]:
    """Return the conditions that also matter for a task that is due later: pause, breaker, and a worker or launcher.

    Limits are left out, because their future room is unknown.
    """
    breaker = () if facts.breaker is None else (_gate_breaker(facts, facts.breaker),)
    who = _gate_worker(facts) if facts.launch is None else _gate_launcher(facts, facts.launch)
    return (_gate_pause(facts), *breaker, who)


LAUNCHER_SECONDS_MAX = 60.0
"""A launcher that no server announced for longer than this counts as missing."""


def _gate_launcher(facts: TaskFacts, launch: LaunchFacts) -> WaitCondition:
    name = launch.launcher
    if launch.seen_at is not None and seconds_between(facts.at, launch.seen_at) <= LAUNCHER_SECONDS_MAX:
        return WaitCondition(check=Check(ok=True, text=f"a server launches workers with {name}"))
    since = "no server ever did" if launch.seen_at is None else f"one last did {ago(facts.at, launch.seen_at)}"
    return WaitCondition(
        check=Check(ok=False, text=f"no server launches workers with {name}"),
        code="no_launcher",
        headline=f"Waiting for a launcher: no server launches workers with {name} ({since}).",
        moves=("holdfast server",),
    )


def _gate_launched_for(facts: TaskFacts, launch: LaunchFacts) -> WaitCondition:
    name = launch.launcher
    if launch.is_for_tenant and launch.is_for_action:
        return WaitCondition(check=Check(ok=True, text=f"launcher {name} is for {facts.action} of this tenant"))
    whom, key = (facts.action, "actions") if launch.is_for_tenant else ("this tenant", "tenants")
    return WaitCondition(
        check=Check(ok=False, text=f"launcher {name} is not for {whom}"),
        code="not_launched_for",
        headline=f"No server launches a worker for it: {whom} is not among `{key}` of [launchers.{name}] of "
        "the server.",
        moves=("holdfast server",),
    )


def _gate_launch_slots(launch: LaunchFacts) -> WaitCondition:
    slots = f"{launch.taken}/{launch.slots} slots taken"
    if launch.taken < launch.slots:
        return WaitCondition(check=Check(ok=True, text=f"launcher {launch.launcher} has a free slot ({slots})"))
    return WaitCondition(
        check=Check(ok=False, text=f"launcher {launch.launcher} has no free slot ({slots})"),
        code="no_launch_slot",
        headline=f"Waiting for a free slot of launcher {launch.launcher}: {slots}.",
        moves=("holdfast launch list",),
    )


def _gate_pause(facts: TaskFacts) -> WaitCondition:
    queue = facts.queue
    if queue.paused_at is None:
        return WaitCondition(check=Check(ok=True, text=f"queue {queue.name} is not paused"))
    who = f"{queue.paused_by} paused queue {queue.name} {ago(facts.at, queue.paused_at)}"
    why = f": {one_line(queue.paused_reason)}" if queue.paused_reason else " without giving a reason"
    return WaitCondition(
        check=Check(ok=False, text=f"queue {queue.name} is paused"),
        code="queue_paused",
        headline=f"Held back: {who}{full_stop(why)}",
        moves=(f"holdfast queue resume {queue.name}",),
    )


def _gate_breaker(facts: TaskFacts, breaker: BreakerFacts) -> WaitCondition:
    whose = f"breaker of {facts.action}"
    if breaker.state == "closed":
        return WaitCondition(check=Check(ok=True, text=f"{whose} is closed"))
    if breaker.state == "half_open":
        counts = f"{breaker.running} running and {breaker.passed} passed of {count_of(breaker.trials, 'trial')}"
        if breaker.running + breaker.passed < breaker.trials:
            return WaitCondition(check=Check(ok=True, text=f"{whose} is half-open and grants a trial ({counts})"))
        said = f"{whose} is half-open and waits for its trials: {counts}"
        return _gate_broken(facts, f"{whose} is half-open ({counts})", f"{said}.", "--close")
    since = f"open since {clock(breaker.since)}"
    if breaker.trial_at is None:
        why = f": {one_line(breaker.reason)}" if breaker.reason else " without giving a reason"
        opened = f"{breaker.actor} opened the {whose} {ago(facts.at, breaker.since)}{full_stop(why)}"
        return _gate_broken(facts, f"{whose} is held {since}", opened, "--reset")
    left = human(max(0.0, seconds_between(breaker.trial_at, facts.at)))
    after = f"{breaker.failures} of {count_of(breaker.attempts, 'attempt')} failed with {one_line(breaker.cause)}"
    return _gate_broken(
        facts, f"{whose} is open", f"{whose} is {since} after {after}; next trial in {left}.", "--reset"
    )


def _gate_broken(facts: TaskFacts, text: str, said: str, move: str) -> WaitCondition:
    return WaitCondition(
        check=Check(ok=False, text=text),
        code="breaker_open",
        headline=f"Held back: {said}",
        moves=(f"holdfast action breaker {facts.action}", f"holdfast action breaker {facts.action} {move}"),
    )


def _gate_worker(facts: TaskFacts) -> WaitCondition:
    workers, queue = facts.crew, facts.queue.name
    if workers.able:
        noun = "worker runs" if workers.able == 1 else "workers run"
        return WaitCondition(check=Check(ok=True, text=f"{workers.able} live {noun} {facts.action} from queue {queue}"))
    text = f"no live worker runs {facts.action} from queue {queue}"
    if workers.elsewhere is not None:
        served = ", ".join(workers.elsewhere.queues or ())
        because = f"{named(workers.elsewhere)} has the action but serves only {served}"
    elif workers.last is not None:
        because = f"the last one, {named(workers.last)}, {fate(facts.at, workers.last)}"
    else:
        because = "no worker ever declared both"
    return WaitCondition(
        check=Check(ok=False, text=text),
        code="no_worker",
        headline=f"Waiting for a worker: {text} ({because}).",
        moves=(f"holdfast work APP --queues {queue}",),
    )


def _gate_limit(facts: TaskFacts) -> WaitCondition:
    queue = facts.queue
    if queue.max_running is None:
        return WaitCondition(check=Check(ok=True, text=f"queue {queue.name} has no limit on running tasks"))
    count = f"{queue.running}/{queue.max_running} running"
    if queue.running < queue.max_running:
        return WaitCondition(check=Check(ok=True, text=f"queue {queue.name} is below its limit ({count})"))
    return WaitCondition(
        check=Check(ok=False, text=f"queue {queue.name} is at its limit ({count})"),
        code="limit_reached",
        headline=f"Waiting for room: queue {queue.name} is at its limit, {count}{behind(facts)}.",
        moves=(f"holdfast queue limit {queue.name} --running {queue.max_running * 2}",),
    )


def _gate_rate(facts: TaskFacts) -> WaitCondition:
    queue = facts.queue
    if queue.starts_per_second is None:
        return WaitCondition(check=Check(ok=True, text=f"queue {queue.name} may start any number per second"))
    rate = f"{queue.starts_per_second:g} starts per second"
    if queue.starts_room > 0:
        return WaitCondition(check=Check(ok=True, text=f"queue {queue.name} has starts left ({rate})"))
    return WaitCondition(
        check=Check(ok=False, text=f"queue {queue.name} used up its starts ({rate})"),
        code="rate_limited",
        headline=f"Waiting its turn: queue {queue.name} is limited to {rate}{behind(facts)}.",
        moves=(f"holdfast queue limit {queue.name} --per-second {queue.starts_per_second * 2:g}",),
    )


def _gate_tenant(facts: TaskFacts, tenant: TenantFacts) -> WaitCondition:
    count = f"{tenant.running}/{tenant.max_running} running"
    if tenant.running < tenant.max_running:
        return WaitCondition(check=Check(ok=True, text=f"tenant {tenant.name} is below its limit ({count})"))
    return WaitCondition(
        check=Check(ok=False, text=f"tenant {tenant.name} is at its limit ({count})"),
        code="tenant_limit_reached",
        headline=f"Waiting for room: tenant {tenant.name} is at its limit, {count} in all its queues{behind(facts)}.",
        moves=(f"holdfast tenant limit {tenant.name} --max-running {tenant.max_running * 2}",),
    )


def _gate_slots(facts: TaskFacts) -> WaitCondition:
    workers = facts.crew
    slots = f"{workers.busy}/{workers.slots} slots busy"
    if workers.busy < workers.slots:
        return WaitCondition(check=Check(ok=True, text=f"a worker has a free slot ({slots})"))
    return WaitCondition(
        check=Check(ok=False, text=f"every worker is busy ({slots})"),
        code="slots_full",
        headline=f"Waiting for a free slot: {slots} on {count_of(workers.able, 'worker')}{behind(facts)}.",
        moves=(f"holdfast work APP --queues {facts.queue.name}",),
    )


def quota_over(facts: TaskFacts) -> str | None:
    """Return the quota that postponed a retry beyond its backoff, in words."""
    if facts.failure is None or facts.failure.retry_at is None or not facts.quotas or facts.due_at is None:
        return None
    if facts.due_at <= facts.failure.retry_at or facts.failure.retry_at > facts.at:
        return None
    quota = next((limit for limit in facts.quotas if limit.used >= limit.allowed), facts.quotas[0])
    whose = f"retry quota of {quota.scope} {quota.name} ({quota.text})"
    if quota.used >= quota.allowed:
        return f"{whose} is used up; next slot in {human(quota.next_slot_seconds)}"
    return f"{whose} has room again; its turn comes in {human(max(0.0, seconds_between(facts.due_at, facts.at)))}"
