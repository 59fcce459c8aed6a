"""Whether the server keeps what it says it has kept.

Every guarantee rests on commits that survive a crash. Our own sessions ask for that themselves (`synchronous_commit`);
what no session can ask for, or a pooler swallowed, is looked at before anything is accepted.
"""

from __future__ import annotations

from holdfast.errors import Unavailable
from holdfast.store.database import Database
from holdfast.store.statements import sql

_DURABILITY = sql("durability")


async def require_durable(database: Database, *, is_unsafe: bool) -> None:
    """Refuse a server that loses accepted work in a crash, unless that was asked for."""
    if is_unsafe:
        return
    row = await database.fetchrow(_DURABILITY)
    if off := [name for name in ("fsync", "synchronous_commit") if row[name] == "off"]:
        raise Unavailable(
            f"{' and '.join(off)} of this PostgreSQL is off: work that was accepted can be lost in a crash.",
            code="database_not_durable",
            advice=f"Switch it on (`alter system set {off[0]} = on`), or say --unsafe (HOLDFAST_UNSAFE=1) where that "
            "does no harm.",
        )
