"""The rules of a gateway of several workers: who gets what, when one is started again, when all is lost. All pure.

Durations are seconds. Looks are counted instead of read off a clock where the machine may be suspended: a worker
has had no time to speak in the hour for which nobody ran.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fencegate.config import Settings

FIRST_DELAY: Final = 0.1
LONGEST_DELAY: Final = 15.0
STEADY: Final = 30.0
"""A worker that lived for so long has not failed at its start: the next is started at once again."""
HELD_OPEN: Final = 1.0
"""Up to this delay the connections that wait for a dead worker wait for the next; for a longer one its sockets are
closed, and the kernel gives new connections to the others."""

LOOK_PERIOD: Final = 1.0
SILENT_LOOKS: Final = 30
"""A worker that said nothing at so many looks one after another is stuck, and is killed."""
QUIET_LOOKS: Final = 5
"""One that said nothing at so many is not counted on: the gateway is not ready."""
STARTING_LOOKS: Final = 60
FIRST_START: Final = 60.0
"""In so long a worker has to serve before the gateway leads."""
LEAST_OUTAGE: Final = 10.0
"""For so long none need serve later, however short the lease: a start takes seconds on a busy machine."""


def refused(settings: Settings, platform: str) -> list[str]:
    """Why several workers cannot be had here; ``platform`` as in ``sys.platform``."""
    if settings.workers == 1 or platform == "linux":
        return []
    return [
        f"workers = {settings.workers}: expected 1 on {platform}: only Linux spreads connections over several "
        "sockets of one port, and ends the workers of a supervisor that was killed"
    ]


def share(settings: Settings) -> Settings:
    """The settings of one worker: its part of what the whole gateway takes."""
    limits = settings.limits
    part = {name: max(1, getattr(limits, name) // settings.workers) for name in ("connections", "in_flight")}
    return settings.model_copy(update={"limits": limits.model_copy(update=part)})


@dataclass(slots=True)
class Restarts:
    """How long one worker's place stays empty: twice as long after each failure, from ``FIRST_DELAY`` on."""

    failures: int = 0

    def after(self, lived: float) -> float:
        """The delay before the next start of a worker that ended after ``lived`` seconds."""
        if lived >= STEADY:
            self.failures = 0
        delay = min(LONGEST_DELAY, FIRST_DELAY * 2.0**self.failures)
        self.failures = min(self.failures + 1, 32)
        return delay


@dataclass(slots=True)
class Watch:
    """What the looks at one worker have shown."""

    serves: bool = False
    silent: int = 0

    def heard(self) -> None:
        self.silent = 0

    def looked(self) -> bool:
        """One more look without a word since the last one; whether the worker is to be given up."""
        self.silent += 1
        return self.silent > (SILENT_LOOKS if self.serves else STARTING_LOOKS)

    @property
    def counted_on(self) -> bool:
        return self.serves and self.silent <= QUIET_LOOKS


@dataclass(slots=True)
class Outage:
    """How long no worker has served. A process that leads and serves nobody stands in another region's way (R14)."""

    limit: float
    looks: int = 0

    def looked(self, serving: int) -> bool:
        """One more look at how many serve; whether the gateway has to end."""
        self.looks = 0 if serving else self.looks + 1
        return self.looks * LOOK_PERIOD > self.limit


def not_ready(watches: list[Watch]) -> str:
    """Why the gateway should get no requests now, ``""`` for nothing.

    A worker that is being started again is no reason: its connections wait for a moment, or go to the others.
    """
    if not any(watch.serves for watch in watches):
        return "no worker takes requests"
    for number, watch in enumerate(watches, 1):
        if watch.serves and not watch.counted_on:
            return f"worker {number} does not answer"
    return ""
