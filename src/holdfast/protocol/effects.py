"""Wire types of the worker contract for effects and steps of an attempt.

The rules of `holdfast.protocol.worker` apply: both ends use these types, and unknown fields are ignored.
"""

from __future__ import annotations

from typing import Literal
from uuid import UUID

import msgspec

from holdfast.protocol.worker import NOTHING, Id


class WantedEffect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Request for the gate of one effect. `digest` replaces `arguments` if those are not sent."""

    task_id: Id
    attempt: int
    lease_token: UUID
    name: str
    key: str | None = None
    ordinal: int = 0
    digest: bytes | None = None
    arguments: msgspec.Raw = NOTHING
    compensation: str | None = None


class GateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The gate's decision.

    Open: send the effect under `idempotency_key`. Closed: it was answered before, with a receipt or, if `refused`, a
    refusal.
    """

    idempotency_key: str
    open: bool
    refused: bool
    receipt: msgspec.Raw
    code: str
    message: str


class EffectAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of sending an effect."""

    task_id: Id
    attempt: int
    lease_token: UUID
    idempotency_key: str
    state: Literal["done", "refused", "unknown"]
    receipt: msgspec.Raw = NOTHING
    code: str | None = None
    message: str | None = None


class StepStored(msgspec.Struct, frozen=True):
    """Confirmation that the step is stored."""

    kept: bool = True


class KeptStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Stores the result of one step. `digest` replaces `arguments` if those are not sent."""

    task_id: Id
    attempt: int
    lease_token: UUID
    name: str
    output: msgspec.Raw
    digest: bytes | None = None
    arguments: msgspec.Raw = NOTHING


class StepView(msgspec.Struct, frozen=True):
    name: str
    digest: bytes
    output: msgspec.Raw


class Recalled(msgspec.Struct, frozen=True):
    """The step results that earlier attempts of this generation stored."""

    steps: list[StepView]
