"""Many deadlines, one timer: nearly all are met, and a timer for each costs more than meeting it."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Late(Protocol):
    """Something that can be told that its time is over."""

    def time_out(self) -> None: ...


class Deadlines:
    """``time_out`` is called once, as soon as the deadline has passed."""

    def __init__(self) -> None:
        self._due: dict[Late, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, late: Late, seconds: float) -> None:
        """It is late ``seconds`` from now."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()  # Up to Python 3.11 each question is a system call.
        due = self._due[late] = self._loop.time() + seconds
        if self._timer is None or due < self._timer_at:
            self._look_at(due)

    def discard(self, late: Late) -> None:
        """Met; harmless for one that is not there. The timer goes on: it finds out when it looks."""
        self._due.pop(late, None)

    def close(self) -> None:
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_at(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        assert self._loop is not None
        self._timer = self._loop.call_at(due, self._look)

    def _look(self) -> None:
        assert self._loop is not None
        self._timer, now = None, self._loop.time()
        for late in [late for late, due in self._due.items() if due <= now]:
            del self._due[late]
            late.time_out()
        if self._due:
            self._look_at(min(self._due.values()))
