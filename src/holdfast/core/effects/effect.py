"""Effect states and idempotency keys. Pure, so that every retry of an effect computes the same key.

pending ──► done       has a receipt: a repeat gets the receipt, and nothing is sent
   │ ▲
   │ └───── refused    the other side refused: final for this generation, a re-drive may ask again
   ▼
unknown ──► pending    neither: it may have happened, and is sent again under the same key
"""

from __future__ import annotations

import hashlib
from enum import StrEnum

_MARK = "_holdfast_effect"


class EffectState(StrEnum):
    """The state of an effect. Only `done` and `refused` are answers."""

    PENDING = "pending"
    UNKNOWN = "unknown"
    DONE = "done"
    REFUSED = "refused"


EFFECT_CODES = {
    EffectState.PENDING: "p",
    EffectState.UNKNOWN: "u",
    EffectState.DONE: "d",
    EffectState.REFUSED: "r",
}


def stable_key(
    *, installation: str, epoch: str, tenant: str, effect: str, user_key: str | None, task_id: str, ordinal: int
) -> str:
    """Return the idempotency key of an effect: the same for every attempt, generation and process.

    It derives from the tenant, the effect's name and the user's key; without a user key, from the task and the number
    of effects of that name that it began before. A task that another one replaces passes its key on to it (see
    `effect_before`). `epoch` is the tag of the epoch in which the task's id was assigned: a restored database and its
    original may assign the same id to two tasks, and these must not share a key.

    Each part is preceded by its length, so that no two different lists of parts give the same text.
    """
    own = ("task", epoch, task_id, str(ordinal)) if user_key is None else ("key", user_key)
    parts = (installation, tenant, effect, *own)
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return f"hf-{hashlib.sha256(text.encode()).hexdigest()[:48]}"


def blame(error: BaseException, key: str) -> None:
    """Mark an exception as raised by the effect under `key`, even if its class restricts attributes."""
    BaseException.__setattr__(error, _MARK, key)


def causing_effect(error: BaseException) -> str:
    """Return the key of the effect that raised this exception or the one that caused it.

    The cause is what Python records: `raise ... from error`, or an exception raised while `error` was handled. An
    effect failure that the action handled before it failed for another reason is not the cause, and `raise ... from
    None` also cuts the link.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if key := _marked(cause):
            return key
        seen.add(id(cause))
        cause = cause.__cause__ if cause.__suppress_context__ else cause.__context__
    return ""


def _marked(error: BaseException) -> str:
    try:
        return str(BaseException.__getattribute__(error, _MARK))
    except AttributeError:
        return ""
