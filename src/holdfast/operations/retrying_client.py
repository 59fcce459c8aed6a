"""A desk for those who look on: while the database, or the server, is away they wait, and then go on where they were.

What is asked again reads and changes nothing. An absence is told once when it begins and once when it is over; one that
begins before anything was answered is not waited for, since then the address may be wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from holdfast.errors import HoldfastError, TooMany, WaitTimeout
from holdfast.operations.client import OperationClient
from holdfast.operations.follow import TimeLimit
from holdfast.operations.operation import Operation, Q
from holdfast.store.database import BAD_CREDENTIALS, TRANSIENT

A = TypeVar("A")

PAUSE_SECONDS = 0.5
_AWAY: tuple[type[Exception], ...] = (*TRANSIENT, TooMany)


class RetryingClient:
    """Asks another desk, again and again while nobody answers there; `timeout` bounds how long it goes on with that."""

    def __init__(
        self,
        operation_client: OperationClient,
        tell: Callable[[str], None],
        timeout: str | float | None = None,
        *,
        has_answered: bool = False,
    ) -> None:
        self._desk = operation_client
        self._tell = tell
        self._patience = TimeLimit(timeout)
        self._has_answered = has_answered
        self._is_away = False

    async def __aenter__(self) -> RetryingClient:
        await self._desk.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._desk.__aexit__(kind, error, trace)

    async def ask(self, operation: Operation[Q, A], asked: Q, *, key: str | None = None) -> A:
        assert operation.method == "GET", "only what changes nothing may be asked again"
        while True:
            try:
                answer = await self._desk.ask(operation, asked, key=key)
            except _AWAY as error:
                if not self._has_answered or not _may_come_back(error):
                    raise
                self._begin_absence(error)
                if self._patience.is_over:
                    raise WaitTimeout(f"Nobody answered any more: {_said(error)}", advice="Ask again later.") from error
                await asyncio.sleep(min(PAUSE_SECONDS, self._patience.next_wait_seconds))
            else:
                self._end_absence()
                return answer

    def _begin_absence(self, error: Exception) -> None:
        if not self._is_away:
            self._is_away = True
            self._tell(f"{_said(error)} Waiting for it to come back.")

    def _end_absence(self) -> None:
        self._has_answered = True
        if self._is_away:
            self._is_away = False
            self._tell("It is back; going on.")


def _may_come_back(error: Exception) -> bool:
    """Whether asking again may help: not where a password is refused or somebody else answers, nor after a wait."""
    if isinstance(error, WaitTimeout) or isinstance(error.__cause__, BAD_CREDENTIALS):
        return False
    return not (isinstance(error, HoldfastError) and (error.code == "client_closed" or error.fields.get("is_lasting")))


def _said(error: Exception) -> str:
    return error.detail if isinstance(error, HoldfastError) else f"{str(error) or type(error).__name__}."
