"""The fence for the user's own transaction: it commits only while the attempt holds its lease."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import asyncpg

from holdfast.authoring.context import Context
from holdfast.errors import LeaseLost
from holdfast.store.sql.effects import effects as effects_sql

_LEASE_LOST_STATE = "LS409"


async def assert_lease(connection: Any, ctx: Context) -> None:
    """Raise `LeaseLost` unless the attempt's lease is current; otherwise keep it current until the transaction ends.

    `connection` is an asyncpg connection inside a transaction on the engine's database. With other drivers, call
    `select holdfast.assert_lease(task_id, lease_token)` with `ctx.task_id` and `ctx.lease_token`.
    """
    try:
        await effects_sql.assert_lease(connection, ctx.task_id, UUID(ctx.lease_token))
    except asyncpg.PostgresError as error:
        if error.sqlstate != _LEASE_LOST_STATE:
            raise
        raise LeaseLost(
            f"Attempt {ctx.attempt} of task {ctx.task_id} no longer holds the lease.",
            advice="Roll back; another attempt continues.",
        ) from error
