"""Verification of the database that a measurement left behind, with the engine's invariants."""

from __future__ import annotations

from holdfast.engine.queries.verify import verify
from holdfast.store.database import Database
from holdfast_bench.arena import Arena


async def violations(arena: Arena) -> list[str]:
    """Return the violated invariants; empty if there are none."""
    database = await Database(arena.url).open()
    try:
        return [str(violation) for violation in (await verify(database)).violations]
    finally:
        await database.close()
