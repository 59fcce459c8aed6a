"""A kernel timer that kills this process in case its supervisor is dead or frozen.

The supervisor enforces a worker's leases first. This timer is the second safeguard and needs neither the supervisor nor
the interpreter. Linux only; on other systems the supervisor is the only safeguard.
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
    """One timer. `set` moves it; when it expires, the kernel kills the process."""

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
        """Set the expiry, an instant on the monotonic clock. FOREVER disarms the timer."""
        if not self._is_armed:
            return
        if instant == FOREVER:
            first = _Time(0, 0)
        else:
            # Zero would disarm the timer; an instant in the past expires at once.
            seconds, part = divmod(max(instant, 1e-9), 1.0)
            first = _Time(int(seconds), max(1, int(part * 1e9)))
        self._libc.timer_settime(self._timer, _TIMER_ABSTIME, ctypes.byref(_Alarm(_Time(0, 0), first)), None)
