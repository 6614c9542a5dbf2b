"""What a supervisor and a worker tell each other: JSON lines over a pair of sockets, one process at each end.

Nothing here waits for the other end: a process that is frozen must not hold up the one that is not.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any, Final, Self

import orjson

LARGEST: Final = 64 * 1024 * 1024
MOST_UNREAD: Final = 4 * 1024 * 1024
"""Bytes that the other end has not taken; above it, what can be said again later is not said."""

Message = dict[str, Any]


class Channel:
    """One end. Ends (:meth:`messages` is over) when the other process does, however it ended."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Self:
        end.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=end, limit=LARGEST))

    def tell(self, kind: str, **fields: Any) -> None:
        if not self._writer.is_closing():
            self._writer.write(orjson.dumps({"kind": kind, **fields}) + b"\n")

    @property
    def is_choked(self) -> bool:
        """The other end does not read."""
        return self._writer.transport.get_write_buffer_size() > MOST_UNREAD

    async def messages(self) -> AsyncIterator[Message]:
        while True:
            try:
                line = await self._reader.readline()
                message = orjson.loads(line) if line.endswith(b"\n") else None
            except (OSError, ValueError):  # reset, or no line of ours
                return
            if message is None:
                return
            yield message

    async def close(self) -> None:
        """What was told is sent first, where the other end takes it."""
        self._writer.close()
        try:
            async with asyncio.timeout(1.0):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            return
