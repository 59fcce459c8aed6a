"""Reporters: your own code that receives the events a webhook would be sent.

A webhook whose URL is `reporter:module:factory` has one. The URL comes from a user who may add webhooks, and a reporter
runs inside the engine's processes. So only factories that an operator named in the settings are imported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.core.webhooks import body_of
from holdfast.errors import Invalid

if TYPE_CHECKING:
    from holdfast.settings.settings import Settings

SCHEME = "reporter:"
CODE = "reporter_not_allowed"
_REFERENCE = re.compile(r"(?=.{3,255}\Z)[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """One event. `delivery_id` is the same in every repeat: store it, and drop repeats.

    An event that is not about a task has neither `task_id` nor `attempt`. `detail` has further data, depending on the
    kind.
    """

    kind: str
    at: datetime
    delivery_id: str
    task_id: str | None
    attempt: int | None
    queue: str | None
    action: str | None
    detail: dict[str, Any] | None
    cursor: str
    tenant: str

    @property
    def body(self) -> bytes:
        """The JSON that a webhook is sent: `{"type", "timestamp", "data"}`, the same bytes for the same event."""
        data = {
            "task_id": self.task_id,
            "attempt": self.attempt,
            "queue": self.queue,
            "action": self.action,
            "detail": self.detail,
            "cursor": self.cursor,
        }
        return body_of(self.kind, self.at, data)


class Reporter(Protocol):
    """Receives events, in order, at least once each. A factory without arguments makes one for each process.

    It runs in its own thread and event loop. Several webhooks may name the same reporter; then it may get an event of
    one while it processes an event of another.
    """

    async def report(self, event: Reported) -> None:
        """Process one event. If this raises, the same event is delivered again before any other."""

    async def close(self) -> None:
        """Release resources when the process stops."""


def is_reporter(url: str) -> bool:
    """Return whether a webhook's URL names a reporter; such a URL is never requested over the network."""
    return url.startswith(SCHEME)


def allowed_reference(url: str, settings: Settings) -> str:
    """Return the `module:factory` that a URL names; raise `Invalid` if it may not be imported here."""
    reference = url.removeprefix(SCHEME)
    if not _REFERENCE.fullmatch(reference):
        raise Invalid(
            "This is not a reporter: it names no factory.", code=CODE, advice="Write reporter:module:factory."
        )
    # A caller alone cannot make a process import a module: the operator of the process must have named it.
    if settings.is_local or reference in settings.webhooks.reporters:
        return reference
    raise Invalid(
        f"The reporter {reference} is not allowed here.",
        code=CODE,
        advice="Add it to HOLDFAST_REPORTERS of every process that delivers events.",
    )
