"""Check that the server keeps committed data.

Every guarantee depends on commits that survive a crash. Sessions request synchronous commits themselves
(`synchronous_commit`); what no session can request, or a pooler dropped, is checked before any work is accepted.
"""

from __future__ import annotations

from holdfast.errors import Unavailable
from holdfast.store.database import Database
from holdfast.store.sql.queries import checkup as checkup_sql


async def require_durable(database: Database, *, is_unsafe: bool) -> None:
    """Raise `Unavailable` for a server that loses accepted work in a crash, unless `is_unsafe` allows it."""
    if is_unsafe:
        return
    settings = (await checkup_sql.durability(database))._asdict()
    if off := [name for name in ("fsync", "synchronous_commit") if settings[name] == "off"]:
        raise Unavailable(
            f"{' and '.join(off)} of this PostgreSQL is off: work that was accepted can be lost in a crash.",
            code="database_not_durable",
            advice=f"Switch it on (`alter system set {off[0]} = on`), or say --unsafe (HOLDFAST_UNSAFE=1) where that "
            "does no harm.",
        )
