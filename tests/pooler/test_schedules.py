"""Schedules through a pooler; their clock stands still, so they are apart from the other scenarios."""

from __future__ import annotations

from tests.engine.test_schedule import (  # noqa: F401
    frozen,
    test_a_slot_fires_when_its_time_has_come_and_not_before,
    test_overlap_queue_starts_the_next_when_the_previous_is_over,
    test_schedulers_that_run_at_once_fire_every_slot_once,
)
