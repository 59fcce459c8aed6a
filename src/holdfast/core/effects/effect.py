"""What an effect may be and under which key it is known: pure, so that every retry of it agrees.

pending ──► done       a receipt: a repeat is answered with it and sends nothing
   │ ▲
   │ └───── refused    the other side said no: it stands for this generation, a re-drive may ask again
   ▼
unknown ──► pending    neither: it may have happened, and is sent again under the same key
"""

from __future__ import annotations

import hashlib
from enum import StrEnum

_MARK = "_holdfast_effect"


class EffectState(StrEnum):
    """How an effect is shown. Only `done` and `refused` are answers."""

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
    """The idempotency key of an effect: the same for every attempt, generation and process.

    From the tenant, the effect's name and the user's key; without one, from the task and how many effects of that name
    it began before. A task in whose place another one runs passes its key on to that one (see `effect_before`).
    `epoch` is the tag of the epoch in which the id of the task was drawn: a restored database and its original may draw
    the same id for two tasks, and must not share a key.

    Parts are measured, so that no two lists of parts read alike.
    """
    own = ("task", epoch, task_id, str(ordinal)) if user_key is None else ("key", user_key)
    parts = (installation, tenant, effect, *own)
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return f"hf-{hashlib.sha256(text.encode()).hexdigest()[:48]}"


def blame(error: BaseException, key: str) -> None:
    """Write on an exception that the effect under `key` raised it, whatever its class thinks of new attributes."""
    BaseException.__setattr__(error, _MARK, key)


def effect_at_fault(error: BaseException) -> str:
    """The key of the effect whose failure this is: it raised the exception itself, or the one that led to it.

    That is what Python says led to it: `raise ... from error`, or raised while `error` was handled. What an action got
    over before it failed for another reason is not at fault, and `raise ... from None` says so too.
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
