"""Log lines for attempts that failed, timed out or were lost: one line with the failure class and what follows."""

from __future__ import annotations

from datetime import datetime

from holdfast.core.tasks.classify import RetryReason
from holdfast.core.tasks.outcome import Failed, Lost, TimedOut
from holdfast.core.tasks.retry import Decision, RetryAt
from holdfast.core.values.duration import human

MESSAGE_CHARACTERS_MAX = 300
ELSEWHERE = "the server decides what follows"


def failure_line(
    *,
    task_id: int,
    action: str,
    attempt: int,
    outcome: Failed | TimedOut | Lost,
    failure_class: str,
    follows: str,
) -> str:
    """Format `task 12 (shop.send) attempt 1 failed: ConnectionResetError: hung up [network]; retry 1 of 3 in
    1s, at …`.
    """
    failure = outcome.failure
    name = failure.type.rpartition(".")[2] or failure.code
    message = " ".join(failure.message.split())
    said = message if len(message) <= MESSAGE_CHARACTERS_MAX else f"{message[:MESSAGE_CHARACTERS_MAX]}…"
    what = f"{name}: {said}" if said else name
    return f"task {task_id} ({action}) attempt {attempt} {_ended(outcome)}: {what} [{failure_class}]; {follows}"


def what_follows(decision: Decision, *, now: datetime, is_first_of_action: bool) -> str:
    """Describe the decision in words. For an action's first unclassified failure, add how to have it retried."""
    if isinstance(decision, RetryAt):
        head = decision.sentence.partition(": ")[0]
        due = (now + decision.delay).astimezone()
        return f"{head[:1].lower()}{head[1:]}" + (f", at {due:%H:%M:%S}" if decision.delay else "")
    if decision.reason == RetryReason.UNCLASSIFIED:
        hint = "; add retry_on=… to the action" if is_first_of_action else ""
        return f"unclassified, not retried{hint}"
    because = decision.sentence.removeprefix("Stopped: ").rstrip(".")
    return f"not retried because {because}"


def _ended(outcome: Failed | TimedOut | Lost) -> str:
    match outcome:
        case Failed():
            return "failed"
        case TimedOut():
            return "timed out"
        case Lost():
            return "was lost"


def left_out(count: int, seconds: float) -> str:
    """Summarize the failures that were not logged one by one."""
    return f"{count} more attempts failed within {human(seconds)}; see `holdfast task list --state failed,retrying`"
