"""What the worker contract answers to workers elsewhere, before it travels."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from holdfast.engine.leases import Claimed, Refusal, Settled
from holdfast.protocol.worker import HandedTask


class RenewedLease(msgspec.Struct, frozen=True, kw_only=True):
    """`is_busy`: the lease was not extended, because another transaction holds its row; it is not lost."""

    lease_expires_at: datetime
    cancel_requested: bool
    is_busy: bool


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a whole batch. `lost`, `canceled` and `busy` are of what the worker said it holds; what is busy was
    neither renewed nor lost."""

    tasks: list[HandedTask]
    accepted: int
    refused: list[Refusal]
    lost: list[int]
    canceled: list[int]
    is_draining: bool
    may_have_more: bool
    busy: list[int] = []

    @property
    def is_silent(self) -> bool:
        """Nothing that its worker has to know now."""
        return not (self.tasks or self.refused or self.lost or self.canceled or self.is_draining)


class TakenTasks(NamedTuple):
    """What one look at the database gave, and whether another could give more."""

    claimed: Sequence[Claimed]
    settled: Settled
    may_have_more: bool
