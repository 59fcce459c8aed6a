"""The fuse: a timer in the kernel that kills this process, for the case that its parent is dead or frozen itself.

The parent is the first to keep a worker to its lease; this is the second line, and needs neither the parent nor the
interpreter. Linux only; elsewhere there is the parent alone.
"""

from __future__ import annotations

import ctypes
import logging
import signal
import sys

from holdfast.execution.running_attempt import FOREVER

log = logging.getLogger("holdfast.worker")

_CLOCK_MONOTONIC = 1
_TIMER_ABSTIME = 1


class _Event(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("unused", ctypes.c_byte * 48),
    )


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Alarm(ctypes.Structure):
    _fields_ = (("interval", _Time), ("first", _Time))


class KillTimer:
    """One timer. `set` moves it; at its moment the kernel kills the process."""

    def __init__(self) -> None:
        self._timer = ctypes.c_void_p()
        self._is_armed = False
        if sys.platform != "linux":
            return
        self._libc = ctypes.PyDLL(None, use_errno=True)
        event = _Event(None, signal.SIGKILL, 0)
        created = self._libc.timer_create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer))
        self._is_armed = created == 0
        if not self._is_armed:
            log.warning("no kernel timer (errno %s): leases are enforced by the parent alone", ctypes.get_errno())

    def set(self, instant: float) -> None:
        """Burn down at an instant of the monotonic clock; FOREVER puts it out."""
        if not self._is_armed:
            return
        if instant == FOREVER:
            first = _Time(0, 0)
        else:
            # A zero would mean never; an instant in the past means now.
            seconds, part = divmod(max(instant, 1e-9), 1.0)
            first = _Time(int(seconds), max(1, int(part * 1e9)))
        self._libc.timer_settime(self._timer, _TIMER_ABSTIME, ctypes.byref(_Alarm(_Time(0, 0), first)), None)
