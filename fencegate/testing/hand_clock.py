"""A clock that stands still until the test moves it."""

from __future__ import annotations


class HandClock:
    """Seconds, as a callable: hand it to whatever takes a ``clock``, and move it by ``clock.now += 5``."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
