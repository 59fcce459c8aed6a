"""Exceptions that say how to treat a failure: `Retry` and `Fatal` raised by actions, `Killed` by Holdfast's runtimes.

They express a request, not a decision: a `Retry` still spends the task's retry budget.
"""

from __future__ import annotations

from datetime import timedelta

from holdfast.core.values.duration import seconds_of
from holdfast.errors import Invalid


class Retry(Exception):
    """Request another attempt `after` a duration (`"30s"`, seconds, `timedelta`), or after the usual backoff.

    If the first argument is text but not a duration, it is the message: `raise hf.Retry("mail server down")`.
    """

    def __init__(
        self,
        duration_or_message: str | float | timedelta | None = None,
        message: str = "",
        *,
        after: str | float | timedelta | None = None,
    ) -> None:
        first = duration_or_message if after is None else after
        super().__init__(first, message)
        self.message = message
        try:
            self.after = None if first is None else timedelta(seconds=seconds_of(first))
        except Invalid:
            if after is not None or not isinstance(first, str):
                raise
            self.after = None
            self.message = f"{first} {message}".strip()

    def __str__(self) -> str:
        return self.message or "The action requested a retry."


class Fatal(Exception):
    """Declare that another attempt cannot help; the task fails for good."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message or "The action declared its failure final."


class Killed(Exception):
    """Report that the process of an attempt was killed from outside.

    Its progress is unknown, so the attempt is lost.
    """

    code = "lost"
