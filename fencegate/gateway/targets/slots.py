"""So many at once, and who comes first is served first.

As :class:`asyncio.Semaphore`, which has no way to take a place without a coroutine where one is free.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """``free`` places. Each that was taken, or waited for, is given back once."""

    def __init__(self, free: int) -> None:
        self.free = free
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a place at once. False: none is free, or others have waited for it."""
        if self.free <= 0 or self._waiting:
            return False
        self.free -= 1
        return True

    async def wait(self, time_limit: float) -> None:
        """Take a place within ``time_limit`` s. Raises ``TimeoutError``."""
        if self.take():
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            async with asyncio.timeout(max(0.0, time_limit)):
                await place
        except BaseException:
            if place.done() and not place.cancelled():
                self.give_back()  # It was handed over as the wait ended.
            elif place in self._waiting:
                self._waiting.remove(place)
            raise

    def give_back(self) -> None:
        """To who has waited longest, if anybody has."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self.free += 1
