"""Idempotent requests: work requested under an idempotency key is done once, and repetitions get the first response for
a day.

The transaction that does the work inserts the key and stores the response, so neither exists without the other. Of two
concurrent requests, the second waits for the end of the first.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import Conflict
from holdfast.store.database import Database, Session
from holdfast.store.sql.identity import requests as requests_sql


class ReplayedResponse(Exception):
    """Raised for a repeated request; `answer` is the stored response in JSON."""

    def __init__(self, answer: bytes) -> None:
        super().__init__("answered before")
        self.answer = answer


class IdempotentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An idempotency key and a digest of the request made under it."""

    tenant_id: int
    key: str
    digest: bytes

    async def begin(self, session: Session) -> None:
        """Insert the key in this transaction. Raise `ReplayedResponse` for a repetition, `Conflict` if another request
        used it.

        A key without a response belongs to work that spans several transactions and has not ended: it continues.
        """
        assert session.is_in_transaction()
        if await requests_sql.take_request_key(session, self.tenant_id, self.key, self.digest) is not None:
            return
        await self.look(session)

    async def look(self, session: Session | Database) -> None:
        """Read the stored response of the key and raise it as `ReplayedResponse`; `Conflict` if another request used
        the key."""
        row = await requests_sql.read_request_key(session, self.tenant_id, self.key)
        if row is None:
            return
        if row.digest != self.digest:
            raise Conflict(
                "This idempotency key was used for another request.",
                code="key_reused",
                advice="Use a new key, or repeat the request unchanged.",
                key=self.key,
            )
        if row.answer is not None:
            raise ReplayedResponse(row.answer)

    async def keep(self, session: Session, answer: Any) -> None:
        """Store the response in this transaction."""
        await requests_sql.store_response(session, self.tenant_id, self.key, self.digest, msgspec.json.encode(answer))
