"""The clock that leases, admissions and the deadlines of writes are counted by: one for the whole process."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Final


def sleepless(platform: str, known: Mapping[str, int]) -> int | None:
    """Of the clocks that are ``known`` by their names in :mod:`time`, the one that goes on during a suspend.

    ``None`` where there is none but :func:`time.monotonic`. Under macOS that one stands still (it is
    ``mach_absolute_time``), and the raw clock, which stands still under Linux, goes on (``mach_continuous_time``).
    """
    return known.get("CLOCK_MONOTONIC_RAW" if platform == "darwin" else "CLOCK_BOOTTIME")


_CLOCK: Final = sleepless(sys.platform, vars(time))  # looked up once: a write asks five times


def steady_clock() -> float:
    """Seconds that no clock step moves and that go on while the machine is suspended, where the system can tell."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
