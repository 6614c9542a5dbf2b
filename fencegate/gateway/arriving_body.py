"""A request's body that has not arrived whole with its head: fed by the connection, read by a station."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from fencegate.gateway.admission import SOON_MS
from fencegate.gateway.limits import Limits
from fencegate.gateway.request import BodyStream, refused
from fencegate.gateway.request_bytes import Malformed

HIGH_WATER: Final = 256 * 1024
LOW_WATER: Final = 64 * 1024


class Framing(Protocol):
    """Where the body ends: ``Sized`` or ``Chunked``."""

    def feed(self, data: bytes) -> tuple[list[bytes], bytes | None]: ...


class ArrivingBody(BodyStream):
    """Under a deadline that moves on with every byte (see :class:`Limits`) and under back-pressure.

    ``pause`` and ``resume`` stop and start the reading from the client.
    """

    def __init__(self, framing: Framing, limits: Limits, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._framing = framing
        self._limits = limits
        self._pause, self._resume = pause, resume
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._parts: deque[bytes] = deque()
        self._buffered = 0
        self._paused = False
        self._dropping = False
        self._reader: asyncio.Future[None] | None = None
        self._broken = ""
        self._ended = False
        self.complete = False
        """The whole body has come, whether or not it was handed out."""

    @property
    def broken(self) -> bool:
        """The body will never be whole, and where the next message would begin is unknown."""
        return bool(self._broken)

    # -- the connection's side --------------------------------------------------------------------

    def feed(self, data: bytes) -> bytes | None:
        """Take bytes in; what follows the body, ``None`` while it goes on. A malformed one is broken for good."""
        try:
            parts, rest = self._framing.feed(data)
        except Malformed as error:
            self._break(str(error))
            return None
        # Together: a chunk of one byte takes forty in memory, and a turn of its own on its way.
        content = parts[0] if len(parts) == 1 else b"".join(parts)
        if content and not self._dropping:
            self._parts.append(content)
            self._buffered += len(content)
            if self._buffered > HIGH_WATER and not self._paused:
                self._paused = True
                self._pause()
        self.complete = rest is not None
        self._wake()
        return rest

    def break_off(self, reason: str) -> None:
        """No more will come."""
        self._ended = True
        self._break(reason)
        self._wake()

    def _break(self, reason: str) -> None:
        if not self.complete and not self._broken:
            self._broken = reason
            self._parts.clear()
            self._wake()

    # -- the station's side -----------------------------------------------------------------------

    async def next_chunk(self) -> bytes:
        if not self._parts and not self.complete and not self._broken:
            try:
                async with asyncio.timeout_at(self._deadline()):
                    await self._more()
            except TimeoutError:
                raise refused(
                    "request_timeout", "The body did not come fast enough.", close=True, retry_after_ms=SOON_MS
                ) from None
        if self._broken:
            detail = f"The body broke off or is malformed: {self._broken}."
            raise refused("request_malformed", detail, close=True)
        if not self._parts:
            self.finished = True
            return b""
        chunk = self._parts.popleft()
        self._buffered -= len(chunk)
        self.received += len(chunk)
        if self._paused and self._buffered < LOW_WATER:
            self._paused = False
            self._resume()
        return chunk

    async def drop(self, time_limit: float) -> bool:
        """Read what is left without keeping it, for up to ``time_limit`` s. Whether the body came to its end."""
        self._dropping = True
        self._parts.clear()
        if self._paused:
            self._paused = False
            self._resume()
        try:
            async with asyncio.timeout(time_limit):
                # A malformed one too: it is no more looked at, but who still sends it could not read the reply.
                while not self.complete and not self._ended:
                    await self._more()
        except TimeoutError:
            pass
        return self.complete

    def _deadline(self) -> float:
        return self._started + self._limits.body_timeout + self.received / self._limits.min_body_rate

    async def _more(self) -> None:
        self._reader = self._loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
