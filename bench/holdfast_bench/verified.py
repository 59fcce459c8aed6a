"""Ask the engine's own verification about the database a measurement left behind."""

from __future__ import annotations

from holdfast.engine.queries.verify import verify
from holdfast.store.database import Database
from holdfast_bench.arena import Arena


async def violations(arena: Arena) -> list[str]:
    """What breaks an invariant; nothing, if all is well."""
    database = await Database(arena.url).open()
    try:
        return [str(violation) for violation in (await verify(database)).violations]
    finally:
        await database.close()
