"""One timer for a deadline that is moved more often than it passes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

NEVER: Final = float("inf")


class DueTime:
    """Calls ``passed`` once the deadline is over. The timer itself is moved forward only, since most pass unneeded."""

    __slots__ = ("_due", "_loop", "_passed", "_timer", "_timer_at")

    def __init__(self, loop: asyncio.AbstractEventLoop, passed: Callable[[], None]) -> None:
        self._loop = loop
        self._passed = passed
        self._due = NEVER
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER

    def set(self, seconds: float) -> None:
        """The deadline is ``seconds`` from now."""
        due = self._due = self._loop.time() + seconds
        if self._timer is None or self._timer_at > due:
            if self._timer is not None:
                self._timer.cancel()
            self._start()

    def clear(self) -> None:
        """No deadline, until the next one is set."""
        self._due = NEVER

    def end(self) -> None:
        """No deadline any more: the timer lets go of its owner."""
        self._due = NEVER
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self) -> None:
        self._timer_at = self._due
        self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._due == NEVER:
            return
        if self._loop.time() < self._due:
            self._start()
        else:
            self._passed()
