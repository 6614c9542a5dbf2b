"""How much of a sentinel's answer is read: redis-py itself reads as much as it is told that there is."""

from __future__ import annotations

import asyncio
from typing import Any, Final

LONGEST_TEXT: Final = 64 * 1024
LONGEST_ANSWER: Final = 1024 * 1024


class TooLong(OSError):
    """An answer goes on beyond its bounds."""


class Bounds:
    """The bounds of all connections to one sentinel, in bytes. :meth:`renew` them before each question."""

    def __init__(self) -> None:
        self.left = LONGEST_ANSWER

    def renew(self) -> None:
        self.left = LONGEST_ANSWER

    async def connect(self, connection: Any) -> None:
        """redis-py's ``redis_connect_func``: from its first byte on the connection is read within these bounds."""
        connection._reader = _Reader(connection._reader, self)
        await connection.on_connect()


class _Reader:
    """An ``asyncio.StreamReader`` as redis-py and hiredis use it."""

    def __init__(self, inner: asyncio.StreamReader, bounds: Bounds) -> None:
        self._inner = inner
        self._bounds = bounds

    async def read(self, count: int) -> bytes:
        return self._counted(await self._inner.read(count))

    async def readline(self) -> bytes:
        return self._counted(await self._inner.readline())

    async def readexactly(self, count: int) -> bytes:
        if count > LONGEST_TEXT:
            raise TooLong(f"a text of {count} bytes")
        return self._counted(await self._inner.readexactly(count))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _counted(self, data: bytes) -> bytes:
        self._bounds.left -= len(data)
        if self._bounds.left < 0:
            raise TooLong(f"an answer of more than {LONGEST_ANSWER} bytes")
        return data
