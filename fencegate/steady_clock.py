"""The clock that leases, admissions and the deadlines of writes are counted by: one for the whole process."""

from __future__ import annotations

import time
from typing import Final

_BOOTTIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)  # looked up once: a write asks five times


def steady_clock() -> float:
    """Seconds that no clock step moves and that go on while the machine is suspended, where the system can tell."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)
