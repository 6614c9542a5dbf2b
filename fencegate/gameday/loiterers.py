"""Clients that take up room and do little: idle connections, senders that drip, readers that hardly read.

Each loiterer holds one connection at a time and opens another when it is cut off, until it is told to stop.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

Loiter = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""What is done on one connection; returns when the server has ended it."""

_SMALL: Final = 4096
_PAUSE: Final = 0.05
_PACE: Final = 0.3


class Loiterers:
    """``path`` is a ledger's route. :attr:`cut` counts connections that the server ended, by kind of loiterer."""

    def __init__(self, origin: str, path: str) -> None:
        self._host, self._port = urlsplit(origin).hostname, urlsplit(origin).port
        self._path = path
        self.open = 0
        self.cut: Counter[str] = Counter()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, *, idle: int = 0, slow_heads: int = 0, slow_bodies: int = 0, slow_readers: int = 0) -> None:
        """So many of each kind, from now on."""
        kinds: dict[str, tuple[int, Loiter]] = {
            "idle": (idle, self._idle),
            "slow head": (slow_heads, self._slow_head),
            "slow body": (slow_bodies, self._slow_body),
            "slow reader": (slow_readers, self._slow_reader),
        }
        for name, (count, loiter) in kinds.items():
            self._tasks += [asyncio.create_task(self._again_and_again(name, loiter)) for _ in range(count)]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _again_and_again(self, name: str, loiter: Loiter) -> None:
        while True:
            await asyncio.sleep(random.uniform(0, 20 * _PAUSE))  # not all in one moment
            with suppress(OSError, EOFError, TimeoutError):
                await self._once(loiter)
            self.cut[name] += 1

    async def _once(self, loiter: Loiter) -> None:
        own = socket.socket()
        try:
            own.setblocking(False)
            # What a slow reader leaves unread shall wait in the server, and not here.
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL)
            await asyncio.get_running_loop().sock_connect(own, (self._host, self._port))
            reader, writer = await asyncio.open_connection(sock=own, limit=_SMALL)
        except BaseException:
            own.close()
            raise
        self.open += 1
        try:
            await loiter(reader, writer)
        finally:
            self.open -= 1
            writer.transport.abort()

    async def _idle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, and then nothing."""
        writer.write(self._head("GET", "?after=0&limit=1") + b"\r\n")
        while await reader.read(_SMALL):
            pass

    async def _slow_head(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A head that never ends, a byte at a time."""
        await self._drip(reader, writer, self._head("POST") + b"X-Slow: " + b"a" * 4000)

    async def _slow_body(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A whole head, and a body that never ends."""
        writer.write(self._head("POST") + b"X-Fencing-Token: 9223372036854775807\r\nContent-Length: 4000\r\n\r\n")
        await self._drip(reader, writer, b"[" + b" " * 3998 + b"]")

    async def _slow_reader(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Asks for long pages, one behind the other, and reads a little now and then."""
        writer.write((self._head("GET", "?after=0&limit=1000") + b"\r\n") * 50)
        while True:
            await asyncio.sleep(_PACE)
            if not await reader.read(1024):
                return

    async def _drip(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> None:
        ended = asyncio.create_task(reader.read(_SMALL))
        try:
            for byte in data:
                writer.write(bytes([byte]))
                done, _ = await asyncio.wait({ended}, timeout=_PACE)
                if done:
                    return
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)

    def _head(self, method: str, query: str = "") -> bytes:
        return f"{method} {self._path}{query} HTTP/1.1\r\nHost: {self._host}\r\n".encode()
