"""Once: what was asked under an idempotency key is done once, and answered the same for a day.

The key is taken in the transaction that does the work and the answer is kept there too, so there is no work without its
answer and no answer without its work. Two at once: the second waits for the first one's end.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import Conflict
from holdfast.store.database import Database, Session
from holdfast.store.statements import sql

_TAKE_KEY = sql("take_request_key")
_READ_KEY = sql("read_request_key")
_KEEP_ANSWER = sql("keep_answer")


class ReplayedResponse(Exception):
    """The same was asked before; `answer` is what was answered, in JSON."""

    def __init__(self, answer: bytes) -> None:
        super().__init__("answered before")
        self.answer = answer


class IdempotentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A key, and a digest of what was asked under it."""

    tenant_id: int
    key: str
    digest: bytes

    async def begin(self, session: Session) -> None:
        """Take the key in this transaction. `ReplayedResponse` for a repetition, `Conflict` if it stands for another.

        A key without an answer is one whose work was begun and not ended in one transaction: it goes on.
        """
        assert session.is_in_transaction()
        if await session.fetchval(_TAKE_KEY, self.tenant_id, self.key, self.digest) is not None:
            return
        await self.look(session)

    async def look(self, session: Session | Database) -> None:
        """Find what was answered under the key: `ReplayedResponse`, or `Conflict` if it stands for another request."""
        row = await session.fetchrow(_READ_KEY, self.tenant_id, self.key)
        if row is None:
            return
        if row["digest"] != self.digest:
            raise Conflict(
                "This idempotency key was used for another request.",
                code="key_reused",
                advice="Use a new key, or repeat the request unchanged.",
                key=self.key,
            )
        if row["answer"] is not None:
            raise ReplayedResponse(row["answer"])

    async def keep(self, session: Session, answer: Any) -> None:
        """Keep what is answered, in this transaction."""
        await session.fetch(_KEEP_ANSWER, self.tenant_id, self.key, self.digest, msgspec.json.encode(answer))
