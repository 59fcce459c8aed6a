"""Use cases of dataset versions: cut over, roll back, drop.

A rollback leaves work behind: unfinished builds to cancel and tables to drop. The caller's process does it at once; if
it dies, a maintenance pass does.
"""

from __future__ import annotations

from holdfast.engine.datasets import cutover
from holdfast.engine.datasets.cutover import CutoverRequest
from holdfast.engine.engine import Engine
from holdfast.engine.publish import publish_and_propagate


async def cut_over(
    engine: Engine, name: str, version: int, *, actor: str, reason: str = "", is_forced: bool = False
) -> bool:
    """Make a version visible to readers, atomically; return whether another one was visible before."""
    request = CutoverRequest(actor=actor, reason=reason)
    return await cutover.cut_over(engine.database, engine.tenant_id, name, version, request, is_forced=is_forced)


async def roll_back(
    engine: Engine, name: str, version: int, *, actor: str, reason: str = "", is_kept: bool = False
) -> int | None:
    """Take a version out of use and cancel its unfinished work; return the version that is shown instead."""
    request = CutoverRequest(actor=actor, reason=reason)
    shown = await cutover.roll_back(engine.database, engine.tenant_id, name, version, request, is_kept=is_kept)
    await finish_rollbacks(engine)
    return shown


async def drop(engine: Engine, name: str, version: int, *, actor: str, reason: str = "") -> None:
    """Drop the tables of a superseded or kept version."""
    request = CutoverRequest(actor=actor, reason=reason)
    await cutover.drop(engine.database, engine.tenant_id, name, version, request)
    await finish_rollbacks(engine)


async def finish_rollbacks(engine: Engine) -> None:
    """Cancel the unfinished work of versions that were rolled back, and drop the tables that are not kept."""
    grace = engine.settings.worker.cancel_grace_seconds
    notifications = await cutover.finish_rollbacks_once(engine.database, engine.catalog, grace_seconds=grace)
    await publish_and_propagate(engine, notifications)
