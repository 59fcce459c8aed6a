"""One client for each tenant with recent requests, which executes its operations.

A client whose callers wait listens on its own connection, so only a limited number is kept: of the unused clients, the
one used longest ago is closed first. A client in use is never closed, however many there are.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from holdfast.client.client import Client
from holdfast.engine.engine import Engine

CLIENTS_MAX = 64


@dataclass(slots=True)
class _OpenClient:
    client: Client
    users: int = 0


class TenantClients:
    """The clients of a server. Use `with clients.of(tenant_id) as client`; `close` when no more requests come."""

    def __init__(self, engine: Engine, *, most: int = CLIENTS_MAX) -> None:
        self._engine = engine
        self._most = most
        self._kept: OrderedDict[int, _OpenClient] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._kept)

    @contextmanager
    def of(self, tenant_id: int) -> Iterator[Client]:
        """Yield a client that sees only this tenant."""
        kept = self._kept.pop(tenant_id, None) or _OpenClient(Client.over(self._engine.of(tenant_id)))
        self._kept[tenant_id] = kept
        kept.users += 1
        try:
            yield kept.client
        finally:
            kept.users -= 1
            self._trim()

    def _trim(self) -> None:
        idle = [tenant_id for tenant_id, kept in self._kept.items() if not kept.users]
        for tenant_id in idle[: max(0, len(self._kept) - self._most)]:
            # Close in the background: the caller's response does not wait for it, and a disconnect does not cancel it.
            closing = asyncio.create_task(_close(self._kept.pop(tenant_id).client), name="holdfast-client-close")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all clients."""
        await asyncio.gather(*self._closing)
        while self._kept:
            await _close(self._kept.popitem()[1].client)


async def _close(client: Client) -> None:
    await client.__aexit__(None, None, None)
