"""Clients for operations, with direct database access or through a server.

Both kinds take the same operations and requests, return the same results and raise the same errors, so callers need not
know which one they use.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, TypeVar

from holdfast.client.client import Client
from holdfast.operations.context import OperationContext, perform
from holdfast.operations.idempotency import with_key
from holdfast.operations.operation import Operation, Q

A = TypeVar("A")


class OperationClient(Protocol):
    """A client for operations. Open it with `async with`, then call `ask`."""

    async def __aenter__(self) -> OperationClient: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def ask(self, operation: Operation[Q, A], request: Q, *, key: str | None = None) -> A:
        """Execute an operation. With a `key`, an operation that creates something does so once."""
        ...


class LocalClient:
    """Executes operations in this process, on its own database connection."""

    def __init__(self, client: Client, actor: str) -> None:
        self.client = client
        self._actor = actor

    async def __aenter__(self) -> LocalClient:
        await self.client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.__aexit__(kind, error, trace)

    async def ask(self, operation: Operation[Q, A], request: Q, *, key: str | None = None) -> A:
        request, once = with_key(operation, request, key, self.client.engine.tenant_id)
        return await perform(operation, OperationContext(self.client, self._actor, once), request)
