"""How long an event loop was blocked: a probe that wakes every few milliseconds and notes when it is late."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType

_PERIOD = 0.005


class LoopLag:
    """``async with LoopLag() as lag: …``; then ``lag.worst`` is the longest delay of the loop in seconds."""

    def __init__(self) -> None:
        self.worst = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LoopLag:
        self._task = asyncio.create_task(self._probe())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _probe(self) -> None:
        while True:
            due = time.monotonic() + _PERIOD
            await asyncio.sleep(_PERIOD)
            self.worst = max(self.worst, time.monotonic() - due)
