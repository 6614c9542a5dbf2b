"""An event loop whose clock is moved by waiting: hours of leases pass in milliseconds, and exactly so each time.

Only for code that waits on the loop (sleeps, time-outs, queues). Sockets work too, but time then jumps while they wait.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Stalled(Exception):
    """Nothing is scheduled and nothing can happen: the test would wait for ever."""


class _Selector(selectors.DefaultSelector):
    """Instead of waiting, moves the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise Stalled("nothing is scheduled: something waits for what never comes")
        self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    def freeze(self, seconds: float) -> None:
        """Let time pass while nothing runs, as a stopped process or a paused machine does."""
        self._clock.now += seconds


def run_in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end in a loop of its own. Raises :class:`Stalled` instead of hanging."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
