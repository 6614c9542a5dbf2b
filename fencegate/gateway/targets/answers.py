"""An upstream's answer on its way back: its beginning in memory, the rest streamed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Final

from fencegate.gateway.targets.pool import UpstreamPool
from fencegate.gateway.targets.upstream import UpstreamBroken, UpstreamConnection

PATIENCE: Final = 0.25
"""Seconds to wait for a short answer's end before its beginning is passed on."""
LONG_PATIENCE: Final = 5.0
"""The same where the answer is to be kept under an idempotency key."""


Parts = tuple[bytes, ...]


async def collect(connection: UpstreamConnection, most: int, *, patient: bool) -> tuple[bytes | None, Parts]:
    """Reads the answer's body to its end, or to more than ``most`` bytes, or until patience ends.

    All of it; or ``None`` and the beginning.

    An answer that breaks off meanwhile raises ``UpstreamBroken``: nothing of it was passed on yet.
    """
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(LONG_PATIENCE if patient else PATIENCE) as limit:
            while size <= most:
                chunk = await connection.next_chunk()
                if not chunk:
                    return b"".join(parts), ()
                parts.append(chunk)
                size += len(chunk)
    except TimeoutError:
        if not limit.expired():
            raise
    return None, tuple(parts)


class AnswerStream(AsyncIterator[bytes]):
    """An answer's body for the edge to send. ``aclose`` gives the connection back, whether or not it was read.

    ``stall`` is the longest wait for the next bytes, in seconds; past it the answer breaks off.
    """

    def __init__(
        self, pool: UpstreamPool, connection: UpstreamConnection, parts: Iterable[bytes], stall: float
    ) -> None:
        self._pool = pool
        self._connection = connection
        self._parts = deque(parts)
        self._stall = stall

    def __aiter__(self) -> AnswerStream:
        return self

    async def __anext__(self) -> bytes:
        if self._parts:
            return self._parts.popleft()
        try:
            async with asyncio.timeout(self._stall):
                chunk = await self._connection.next_chunk()
        except TimeoutError:
            raise UpstreamBroken("the upstream stalled in the middle of its answer") from None
        if not chunk:
            self.discard()
            raise StopAsyncIteration
        return chunk

    def discard(self) -> None:
        """Give the connection back; it is closed unless the answer had ended. Harmless when repeated."""
        self._pool.release(self._connection)

    async def aclose(self) -> None:
        self.discard()
