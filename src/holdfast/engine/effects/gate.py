"""The gate for effects: permission before an effect is sent, its answer afterwards, and lists of both.

Each is one round trip in a transaction of its own, so no transaction is open while the effect is sent. Both may be
repeated after a broken connection: the same lease finds its own row again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar
from uuid import UUID

import msgspec

from holdfast.codec import json_codec
from holdfast.core.effects.effect import EFFECT_CODES, EffectState, stable_key
from holdfast.core.tasks.failure import CODE_BYTES_MAX, MESSAGE_BYTES_MAX, storable_text
from holdfast.engine.leases import Claimed
from holdfast.engine.queries.pages import LIMIT_MAX, SCAN_ROWS_MAX, full_page, valid_limit
from holdfast.errors import Conflict, EffectDenied, Invalid, LeaseLost, Unavailable
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database
from holdfast.store.sql.effects import effects as effects_sql

STATES = tuple(state.value for state in EffectState)
_Result = TypeVar("_Result")
PAUSES_SECONDS = (0.05, 0.2, 1.0)
"""Pauses between tries while the database is unreachable. After these the attempt should fail: leases expire
meanwhile."""


class OpenEffect(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The effect that an attempt requests. `digest` identifies the arguments, which are stored only for a
    compensation."""

    name: str
    user_key: str | None
    ordinal: int
    digest: bytes
    compensation: str | None = None
    arguments: bytes | None = None


class GateDecision(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The decision: open, to be sent under `key`; or answered before, with a receipt or a refusal."""

    key: str
    is_open: bool = False
    receipt: bytes | None = None
    code: str = ""
    message: str = ""


class AnswerEffect(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The outcome of sending an effect."""

    key: str
    state: EffectState
    receipt: bytes | None = None
    code: str | None = None
    message: str | None = None


class EffectView(msgspec.Struct, frozen=True, kw_only=True):
    """One effect, for display."""

    task_id: str
    effect: str
    user_key: str | None
    idempotency_key: str
    state: str
    attempt: int
    generation: int
    sends: int
    opened_at: datetime
    sent_at: datetime
    answered_at: datetime | None
    receipt: msgspec.Raw
    code: str | None
    message: str | None
    compensation: str | None
    compensated_by: str | None
    compensated_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """The sending attempt, identified by its lease, and its tenant."""

    claimed: Claimed
    tenant: str


async def open_effect(database: Database, catalog: Catalog, sender: Sender, wanted: OpenEffect) -> GateDecision:
    """Open the gate for one effect, or return its earlier answer.

    `LeaseLost` without the current lease, `EffectDenied` without authority, `Conflict` if the key belongs to other
    arguments or to a compensated effect, `Unavailable` while another attempt is sending it.
    """
    claimed = sender.claimed
    key = await _key_before(database, claimed, wanted) or stable_key(
        installation=await catalog.installation(),
        epoch=await catalog.epoch_tag(claimed.task_id),
        tenant=sender.tenant,
        effect=wanted.name,
        user_key=wanted.user_key,
        task_id=str(claimed.task_id),
        ordinal=wanted.ordinal,
    )
    row = await _open(database, claimed, wanted, key)
    if row.is_allowed is None:
        raise lease_lost(claimed, f"send {wanted.name}")
    if not row.is_allowed:
        raise EffectDenied(
            f"{row.action} is not allowed to do {wanted.name}.",
            advice=f"Allow it: holdfast effect allow {wanted.name} --action {row.action}",
        )
    return GateDecision(key=key, is_open=True) if row.sends is not None else _shut(row, wanted, key)


async def _key_before(database: Database, claimed: Claimed, wanted: OpenEffect) -> str | None:
    """Return the key of an effect that this position of a run requested before, maybe as another task.

    That is an item of a list that was expanded again, or a node of a replaced run. A key set by the user needs no
    lookup: it does not depend on the task.
    """
    if wanted.user_key is not None or claimed.run_id is None:
        return None
    asked = (claimed.tenant_id, claimed.task_id, wanted.name, wanted.ordinal, wanted.digest)
    row = await insistently(lambda: effects_sql.effect_before(database, *asked))
    return None if row is None else row.key


async def _open(database: Database, claimed: Claimed, wanted: OpenEffect, key: str) -> effects_sql.OpenEffectRow:
    """Repeat until the result is complete: a row that appeared or changed while the statement ran is seen by the
    next."""
    asked = (key, wanted.name, wanted.user_key, wanted.ordinal, wanted.digest, wanted.compensation, wanted.arguments)
    while True:
        row = await insistently(lambda: effects_sql.open_effect(database, *(*_fence(claimed), *asked)))
        if not row.is_allowed or row.sends is not None or row.is_current:
            return row


def _shut(row: effects_sql.OpenEffectRow, wanted: OpenEffect, key: str) -> GateDecision:
    what = f"{wanted.name} under the key {wanted.user_key or key!r}"
    if not row.is_same:
        raise Conflict(
            f"{what} was asked for with other arguments, by task {row.known_task_id}.",
            code="effect_key_reused",
            advice="Give another key for another effect; take what changes from run to run through ctx.step.",
            task_id=str(row.known_task_id),
        )
    if row.compensated_by is not None:
        raise Conflict(
            f"{what} was undone by task {row.compensated_by}.",
            code="effect_compensated",
            advice="Give another key to do it once more.",
        )
    match row.state:
        case "d":
            return GateDecision(key=key, receipt=row.receipt)
        case "r":
            return GateDecision(key=key, code=row.code or "", message=row.message or "")
        case _:
            raise Unavailable(
                f"{what} is being sent by task {row.known_task_id}.",
                code="effect_in_flight",
                advice="Its answer will be there for the next attempt.",
            )


async def answer_effect(database: Database, claimed: Claimed, answer: AnswerEffect) -> None:
    """Store a receipt, a refusal, or that there was neither. Fenced: after `LeaseLost` the effect stays unknown."""
    row = await insistently(
        lambda: effects_sql.answer_effect(
            database,
            *_fence(claimed),
            answer.key,
            EFFECT_CODES[answer.state],
            answer.receipt,
            None if answer.code is None else storable_text(answer.code, CODE_BYTES_MAX),
            None if answer.message is None else storable_text(answer.message, MESSAGE_BYTES_MAX),
        )
    )
    if not row.is_held:
        raise lease_lost(claimed, "keep the answer of an effect")
    if row.is_kept:
        return
    if row.opened_by in (None, claimed.task_id):
        raise Conflict(
            f"There is no effect under {answer.key} that this attempt opened and has not answered otherwise.",
            code="effect_not_open",
            advice="An effect is opened before it is sent, and answered once.",
        )
    raise Unavailable(
        f"The effect under {answer.key} was taken over by task {row.opened_by}.",
        code="effect_in_flight",
        advice="Its answer will be there for the next attempt.",
    )


async def list_effects(
    database: Database,
    tenant_id: int,
    *,
    task_ids: Sequence[int] | None = None,
    state: str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> list[EffectView]:
    """Return the requested number of effects: of some tasks, in one state, or the newest of all."""

    async def page(begin: str | None, left: int) -> tuple[list[EffectView], str | None]:
        return await effect_page(database, tenant_id, task_ids=task_ids, state=state, after=begin, limit=left)

    return await full_page(page, limit, after)


async def effect_page(
    database: Database,
    tenant_id: int,
    *,
    task_ids: Sequence[int] | None = None,
    state: str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> tuple[list[EffectView], str | None]:
    """Return a page of effects, and the key `after` which the next page begins; None if there are no more.

    A page reads a bounded number of rows, so a selective filter may give a short or empty page with more rows after it.
    """
    if state is not None and state not in STATES:
        raise Invalid(
            f"{state!r} is no state of an effect.", code="invalid_state", advice=f"One of {', '.join(STATES)}."
        )
    valid_limit(limit)
    asked = (None if task_ids is None else list(task_ids), state, limit, after, max(limit, SCAN_ROWS_MAX))
    found = await effects_sql.list_effects(database, tenant_id, *asked)
    rows = [_view(row) for row in found if row.task_id is not None]
    if len(rows) == limit:
        return rows, rows[-1].idempotency_key
    return rows, found[0].last_key


async def unknown_effects(database: Database, tenant_id: int, task_ids: Sequence[int]) -> list[EffectView]:
    """Return effects without an answer of tasks that will run again: they are sent again, under the same keys."""
    found = await list_effects(database, tenant_id, task_ids=task_ids, state=EffectState.UNKNOWN, limit=LIMIT_MAX)
    return [one for one in found if one.compensated_by is None]


async def undone_effects(database: Database, tenant_id: int, task_ids: Sequence[int]) -> list[EffectView]:
    """Return compensated effects of tasks that will run again: a request under their keys fails."""
    return [_view(row) for row in await effects_sql.undone_effects(database, tenant_id, list(task_ids), LIMIT_MAX)]


def _view(row: effects_sql.ListEffectsRow | effects_sql.UndoneEffectsRow) -> EffectView:
    found = {name: value for name, value in row._asdict().items() if name != "last_key"}
    found["receipt"] = json_codec.NULL if row.receipt is None else msgspec.Raw(row.receipt)
    return EffectView(**found)


def _fence(claimed: Claimed) -> tuple[int, int, UUID, int]:
    return (claimed.task_id, claimed.attempt, claimed.lease_token, claimed.tenant_id)


def lease_lost(claimed: Claimed, what: str) -> LeaseLost:
    return LeaseLost(
        f"Attempt {claimed.attempt} of task {claimed.task_id} may not {what}: its lease is not current.",
        advice="Stop here; another attempt goes on.",
    )


async def insistently(statement: Callable[[], Awaitable[_Result]]) -> _Result:
    """Run a repeatable statement, with a limited number of retries when the connection breaks."""
    for pause in PAUSES_SECONDS:
        try:
            return await statement()
        except Unavailable:
            await asyncio.sleep(pause)
    return await statement()
