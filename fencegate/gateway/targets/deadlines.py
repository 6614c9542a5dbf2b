"""Many deadlines, one timer: nearly all are met, and a timer for each costs more than meeting it."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Late(Protocol):
    """Something that can be told that its time is over."""

    def time_out(self) -> None: ...


class Deadlines:
    """``time_out`` is called once, as soon as the deadline has passed. Times are the loop's."""

    def __init__(self) -> None:
        self._due: dict[Late, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")

    def add(self, late: Late, due: float) -> None:
        self._due[late] = due
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
        self._timer = asyncio.get_running_loop().call_at(due, self._look)

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for late in [late for late, due in self._due.items() if due <= now]:
            del self._due[late]
            late.time_out()
        if self._due:
            self._look_at(min(self._due.values()))
