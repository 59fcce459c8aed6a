"""Epochs: on which server an id was drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """The ids drawn on one server: from `first_span` on, and from `first_task_id` up to before `middle_id`."""

    epoch: int
    tag: str
    first_task_id: int
    middle_id: int
    first_span: int

    def has_begun_by(self, number: int) -> bool:
        """Whether an id was drawn in this epoch or a later one. Ids of runs and their nodes have a sequence of their
        own, in the upper half of each block."""
        return number >= self.first_span or self.first_task_id <= number < self.middle_id


def epoch_of(epochs: Sequence[Epoch], number: int) -> Epoch:
    """The epoch in which an id was drawn. `epochs` are in order; the first holds what no other does."""
    return next((epoch for epoch in reversed(epochs) if epoch.has_begun_by(number)), epochs[0])
