"""Launches through a pooler: slots, reservations, tokens and what becomes of launchers that die."""

from __future__ import annotations

from tests.launchers.conftest import launching, platform, queue_up, slots  # noqa: F401
from tests.launchers.test_seed_launch import (  # noqa: F401
    test_a_crash_before_the_launch_is_taken_up_by_another_launcher,
    test_a_late_callback_cannot_clobber_another_attempt,
    test_slot_acquisition_is_atomic,
    test_two_loops_at_once_launch_each_attempt_once,
)
