"""Epochs: the period of one database server in which an id was assigned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """The ids assigned on one server: from `first_span` on, and from `first_task_id` up to before `middle_id`."""

    epoch: int
    tag: str
    first_task_id: int
    middle_id: int
    first_span: int

    def has_begun_by(self, number: int) -> bool:
        """Return whether an id was assigned in this epoch or a later one.

        Ids of runs and their nodes have their own sequence, in the upper half of each block.
        """
        return number >= self.first_span or self.first_task_id <= number < self.middle_id


def epoch_of(epochs: Sequence[Epoch], number: int) -> Epoch:
    """Return the epoch in which an id was assigned. `epochs` are in order; the first takes ids that no other has."""
    return next((epoch for epoch in reversed(epochs) if epoch.has_begun_by(number)), epochs[0])
