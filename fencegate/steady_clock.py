"""The clock that leases, admissions and the deadlines of writes are counted by: one for the whole process."""

from __future__ import annotations

import time


def steady_clock() -> float:
    """Seconds that no clock step moves and that go on while the machine is suspended, where the system can tell."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)
