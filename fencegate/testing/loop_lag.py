"""How long an event loop was blocked: a probe that wakes every few milliseconds and notes when it is late."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType

_PERIOD = 0.005


class LoopLag:
    """``async with LoopLag() as lag: …``; then ``lag.worst`` is the longest delay of the loop in seconds.

    By a clock that a thread beside the loop moves on: it stands while the whole process does, on a busy machine.
    """

    def __init__(self) -> None:
        self.worst = 0.0
        self._ticks = 0
        self._ended = threading.Event()
        self._clock = threading.Thread(target=self._tick, daemon=True)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LoopLag:
        self._clock.start()
        self._task = asyncio.create_task(self._probe())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._clock.join()

    def _tick(self) -> None:
        while not self._ended.wait(_PERIOD):
            self._ticks += 1

    async def _probe(self) -> None:
        while True:
            before = self._ticks
            await asyncio.sleep(_PERIOD)
            self.worst = max(self.worst, (self._ticks - before - 1) * _PERIOD)
