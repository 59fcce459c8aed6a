"""A client for watching: during an outage of the database or the server it waits, and then continues.

Only reads are retried. The start and the end of an outage are each reported once. An outage before the first response
is raised at once, because the address may be wrong.
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
    """Retries reads of another client during an outage. `timeout` limits the total time."""

    def __init__(
        self,
        operation_client: OperationClient,
        report: Callable[[str], None],
        timeout: str | float | None = None,
        *,
        has_answered: bool = False,
    ) -> None:
        self._operation_client = operation_client
        self._report = report
        self._limit = TimeLimit(timeout)
        self._has_answered = has_answered
        self._is_away = False

    async def __aenter__(self) -> RetryingClient:
        await self._operation_client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._operation_client.__aexit__(kind, error, trace)

    async def ask(self, operation: Operation[Q, A], request: Q, *, key: str | None = None) -> A:
        assert operation.method == "GET", "only what changes nothing may be asked again"
        while True:
            try:
                answer = await self._operation_client.ask(operation, request, key=key)
            except _AWAY as error:
                if not self._has_answered or not _may_come_back(error):
                    raise
                self._begin_absence(error)
                if self._limit.is_over:
                    raise WaitTimeout(f"Still no answer: {_describe(error)}", advice="Ask again later.") from error
                await asyncio.sleep(min(PAUSE_SECONDS, self._limit.next_wait_seconds))
            else:
                self._end_absence()
                return answer

    def _begin_absence(self, error: Exception) -> None:
        if not self._is_away:
            self._is_away = True
            self._report(f"{_describe(error)} Waiting for it to come back.")

    def _end_absence(self) -> None:
        self._has_answered = True
        if self._is_away:
            self._is_away = False
            self._report("It is back; going on.")


def _may_come_back(error: Exception) -> bool:
    """Return whether a retry may help: not for refused credentials, a foreign server, or a wait that timed out."""
    if isinstance(error, WaitTimeout) or isinstance(error.__cause__, BAD_CREDENTIALS):
        return False
    return not (isinstance(error, HoldfastError) and (error.code == "client_closed" or error.fields.get("is_lasting")))


def _describe(error: Exception) -> str:
    return error.detail if isinstance(error, HoldfastError) else f"{str(error) or type(error).__name__}."
