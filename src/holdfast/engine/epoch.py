"""Epochs: detect that PostgreSQL is another server than before, and make it safe before any other work.

A promoted replica may lack the last commits. A restored backup lacks more, and its original may still run. Either would
assign ids again that clients, workers and receivers of effects already know. The first process that detects this begins
an epoch in two short transactions while all others wait (see `schema/16_epochs.sql`).
"""

from __future__ import annotations

import logging

from holdfast.engine.audit import Change, audit
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.store.database import Session
from holdfast.store.server_identity import ServerEpoch
from holdfast.store.sql.maintenance import epoch as epoch_sql

log = logging.getLogger("holdfast.epoch")

ACTOR = "holdfast:epoch"
RESTARTED = "restarted"
CAUSES = {
    RESTARTED: "PostgreSQL was restarted",
    "promoted": "a replica was promoted, or a backup recovered to a point in time",
    "copied": "the database was copied or restored under another name",
    "restored": "the database was restored into another cluster",
}


async def check_server(session: Session, known: int) -> ServerEpoch:
    """Return the epoch of the server behind a session; begin a new epoch if this process is the first to detect a
    change."""
    row = await epoch_sql.check_server(session, known)
    if row.cause is not None:
        await begin_epoch(session)
        row = await epoch_sql.check_server(session, known)
    return ServerEpoch(epoch=row.epoch, is_other=row.is_other)


async def begin_epoch(session: Session) -> None:
    """Begin the epoch of this server and record it; do nothing if another process already has."""
    async with session.transaction():
        await epoch_sql.prepare_epoch(session)
    async with session.transaction():
        begun = await epoch_sql.begin_epoch(session)
        if begun.cause is None:
            return
        log.warning("%s: epoch %s begins", CAUSES[begun.cause], begun.epoch)
        if begun.cause == RESTARTED:
            return
        after, before = ({**row._asdict()} for row in await epoch_sql.epoch_identities(session))
        change = Change(
            verb="server.replace",
            subject_kind="server",
            subject_id=f"epoch {begun.epoch}",
            before=before,
            after=after | {"workers_retired": begun.retired},
        )
        await audit(session, DEFAULT_TENANT_ID, [change], actor=ACTOR, reason=CAUSES[begun.cause])
