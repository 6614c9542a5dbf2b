"""An election that says what a test tells it to, and the looks that tests take at what is pending."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from fencegate.errors import Unavailable

PENDING = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"


class Proofs:
    """A :data:`fencegate.fence.StillLeads`. It says yes, unless the next one of ``words`` is "no" or "down".

    ``during`` is awaited while the election is being asked; ``asked`` are the terms that were asked about.
    """

    def __init__(self) -> None:
        self.words: deque[str] = deque()
        self.asked: list[tuple[str, int]] = []
        self.during: Callable[[], Awaitable[object]] | None = None

    async def __call__(self, role: str, token: int, time_limit: float) -> bool:
        self.asked.append((role, token))
        word = self.words.popleft() if self.words else "yes"
        if self.during is not None:
            await self.during()
        await asyncio.sleep(0)
        if word == "down":
            raise Unavailable("no quorum")
        return word != "no"
