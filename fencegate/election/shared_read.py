"""Many callers, one read of the election: forged tokens and ten thousand roles must not storm a quorum (rule R11)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from fencegate.lease import Term

READ_SPACING: Final = 0.05
"""Seconds between the starts of two reads of one thing, however many ask."""
PROOF_LIMIT: Final = 1.0
"""Seconds of a read that proves a term to a batch: its role's fence is locked meanwhile."""


class SharedRead:
    """Many callers, one read: each gets the answer of a read that *began* after it asked.

    Whoever asks while a read is under way waits for the next one, with all the others; reads begin at
    least ``spacing`` seconds apart.
    """

    def __init__(self, read: Callable[[], Awaitable[Term | None]], spacing: float) -> None:
        self._read = read
        self._spacing = spacing
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[Term | None] | None = None
        self._tasks: set[asyncio.Task[Term | None]] = set()
        self._began = float("-inf")

    async def next(self) -> Term | None:
        if self._next is None:
            self._next = asyncio.create_task(self._run())
            self._tasks.add(self._next)
            self._next.add_done_callback(self._ended)
        return await asyncio.shield(self._next)

    def _ended(self, task: asyncio.Task[Term | None]) -> None:
        self._tasks.discard(task)
        self._next = None if self._next is task else self._next
        if not task.cancelled():
            task.exception()  # every caller may have left by the time it fails

    @property
    def is_rested(self) -> bool:
        """No read is under way, and the next one would begin at once: nothing here is worth keeping."""
        return not self._tasks and asyncio.get_running_loop().time() >= self._began + self._spacing

    def cancel(self) -> None:
        """Drop the reads under way: whoever waits for one is cancelled with it."""
        for task in tuple(self._tasks):
            task.cancel()

    async def _run(self) -> Term | None:
        loop = asyncio.get_running_loop()
        async with self._turn:
            await asyncio.sleep(max(0.0, self._began + self._spacing - loop.time()))
            self._next, self._began = None, loop.time()
            return await self._read()
