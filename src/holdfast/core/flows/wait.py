"""Descriptions of what a waiting node waits for, and the commands that answer it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import datetime

from holdfast.core.explain.phrases import clock, one_line, seconds_between
from holdfast.core.values.duration import human


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitFacts:
    """What a node waits for: an event by name and key, or a person's approval."""

    name: str
    key: str
    is_approval: bool = False
    deadline: datetime | None = None
    prompt: str = ""

    @property
    def event_key(self) -> str | None:
        """The key of the event, without its name; None if it has none."""
        return self.key.removeprefix(f"{self.name}:") if self.key.startswith(f"{self.name}:") else None


def answers_to(wait: WaitFacts, run_id: str, node: str) -> tuple[str, ...]:
    """Return the commands that end a wait."""
    if wait.is_approval:
        target = f"{run_id} {shlex.quote(node)}"
        return f"holdfast run approve {target}", f"holdfast run reject {target} --reason TEXT"
    key = "" if wait.event_key is None else f" --key {shlex.quote(wait.event_key)}"
    return (f"holdfast run signal {shlex.quote(wait.name)}{key} --run {run_id}",)


def wait_code(wait: WaitFacts) -> str:
    """Return the machine-readable code of a wait."""
    return "waiting_for_approval" if wait.is_approval else "waiting_for_event"


def waited_for(wait: WaitFacts, at: datetime) -> str:
    """Describe what a node waits for and until when."""
    what = "an approval" if wait.is_approval else f"the event {wait.name}"
    key = f" (key {one_line(wait.key)})" if not wait.is_approval and wait.key != wait.name else ""
    if wait.deadline is None:
        return f"{what}{key}, without a deadline"
    left = seconds_between(wait.deadline, at)
    return f"{what}{key}, " + (
        f"for {human(left)} more, until {clock(wait.deadline)}" if left > 0 else "and its deadline has passed"
    )
