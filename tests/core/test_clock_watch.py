"""A clock that was set forward is not believed for one lease; one that goes as it should, or was set back, is."""

from __future__ import annotations

import pytest

from holdfast.core.health.clock_watch import ClockWatch

LEASE = 10.0


def watched(*readings):
    """A watch after readings of (database, own) clocks."""
    watch = ClockWatch()
    for database_at, own_at in readings:
        watch = watch.read(database_at, asked_at=own_at, answered_at=own_at, lease_seconds=LEASE)
    return watch


def test_a_first_reading_is_believed():
    assert watched((5e9, 0.0)).is_steady(0.0)


@pytest.mark.parametrize("step", [0.0, 0.9, 2.4, -3600.0])
def test_a_clock_that_goes_on_is_believed(step):
    assert watched((100.0, 0.0), (101.0 + step, 1.0)).is_steady(1.0)


@pytest.mark.parametrize("step", [2.6, 3600.0])
def test_after_a_jump_one_lease_is_waited_for(step):
    watch = watched((100.0, 0.0), (101.0 + step, 1.0))
    assert [watch.is_steady(own_at) for own_at in (1.0, 10.9, 11.0)] == [False, False, True]
    later = watch.read(110.0 + step, asked_at=10.0, answered_at=10.0, lease_seconds=LEASE)
    assert (later.is_steady(10.0), later.is_steady(11.0)) == (False, True)


def test_a_second_jump_begins_the_wait_anew():
    watch = watched((100.0, 0.0), (3701.0, 1.0), (7306.0, 6.0))
    assert (watch.is_steady(15.9), watch.is_steady(16.0)) == (False, True)


def test_a_process_that_slept_as_long_as_the_clock_went_on_saw_no_jump():
    assert watched((100.0, 0.0), (3700.0, 3600.0)).is_steady(3600.0)


def test_an_answer_that_took_long_is_no_jump():
    watch = ClockWatch().read(100.0, asked_at=0.0, answered_at=0.1, lease_seconds=LEASE)
    assert watch.read(130.0, asked_at=1.0, answered_at=31.0, lease_seconds=LEASE).is_steady(31.0)


def test_a_short_lease_does_not_make_noise_a_jump():
    watch = ClockWatch().read(100.0, asked_at=0.0, answered_at=0.0, lease_seconds=1.0)
    assert watch.read(101.9, asked_at=1.0, answered_at=1.0, lease_seconds=1.0).is_steady(1.0)
