"""Results of the worker contract for remote workers, before they are encoded."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from holdfast.engine.leases import Claimed, Refusal, Settled
from holdfast.protocol.worker import HandedTask


class RenewedLease(msgspec.Struct, frozen=True, kw_only=True):
    """A renewed lease. `is_busy`: it was not extended, because another transaction locks its row; it is not lost."""

    lease_expires_at: datetime
    cancel_requested: bool
    is_busy: bool


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an exchange.

    `lost`, `canceled` and `busy` refer to the tasks that the worker named as running; a busy one was neither renewed
    nor lost.
    """

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
        """Whether the result contains nothing that the worker has to know now."""
        return not (self.tasks or self.refused or self.lost or self.canceled or self.is_draining)


class TakenTasks(NamedTuple):
    """The result of one claim, and whether another could find more."""

    claimed: Sequence[Claimed]
    settled: Settled
    may_have_more: bool
