"""A reporter: code of yours that is handed the events a webhook would be sent.

A webhook whose URL is `reporter:module:factory` has one. A URL comes from whoever may add a webhook, and a reporter
runs inside the engine's processes: only what an operator named in the settings is ever imported.
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
    """One event. `delivery_id` is the same in every repeat: keep it, and drop repeats.

    An event about no task has neither `task_id` nor `attempt`. `detail` is what else is known of it, by its kind.
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
    """Takes events, in order, at least once each. A factory without arguments makes one for each process.

    All of it runs in a thread and an event loop of its own. Several webhooks may name the same reporter: it may then be
    handed an event of one while it is busy with that of another.
    """

    async def report(self, event: Reported) -> None:
        """Take one event. What it raises means that it did not: the same event comes again, before any other."""

    async def close(self) -> None:
        """Let go of what it holds, when its process stops."""


def is_reporter(url: str) -> bool:
    """Whether a webhook's URL names a reporter: such a one is never asked over the network."""
    return url.startswith(SCHEME)


def allowed_reference(url: str, settings: Settings) -> str:
    """The `module:factory` that a URL names; `Invalid` for one that may not be imported here."""
    reference = url.removeprefix(SCHEME)
    if not _REFERENCE.fullmatch(reference):
        raise Invalid("This is no reporter: it names no factory.", code=CODE, advice="Write reporter:module:factory.")
    # A caller's word alone makes no process import a module: whoever runs it has to have named it.
    if settings.is_local or reference in settings.webhooks.reporters:
        return reference
    raise Invalid(
        f"The reporter {reference} may not be used here.",
        code=CODE,
        advice="Name it in HOLDFAST_REPORTERS of every process that delivers events.",
    )
