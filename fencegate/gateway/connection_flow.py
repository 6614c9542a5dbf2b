"""The bytes of one connection under back-pressure in both directions: who reads too little, and who is not read now."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import cast

from fencegate.gateway.cut_off import close_in_time, cut_off


class ConnectionFlow:
    """A transport, and whether it takes and gives bytes. ``lost``: it is no more."""

    __slots__ = ("_last_bytes", "_loop", "_transport", "full", "lost", "paused")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._last_bytes: asyncio.TimerHandle | None = None
        self.lost = False
        self.full: asyncio.Future[None] | None = None
        """Done once the other end has read enough for more to be sent; ``None`` where it has."""
        self.paused = False
        """Nothing is read at present."""

    def made(self, transport: asyncio.BaseTransport) -> str:
        """Begin on this transport; the other end's address."""
        # A cast and no assert: uvloop's transports are no asyncio.Transport by class.
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else ""

    @property
    def open(self) -> bool:
        """Whether anything can be sent."""
        transport = self._transport
        return not self.lost and transport is not None and not transport.is_closing()

    def send(self, data: bytes) -> None:
        """Hand bytes to the transport. Raises ``ConnectionResetError`` once the other end has gone."""
        transport = self._transport
        if self.lost or transport is None or transport.is_closing():
            raise ConnectionResetError("the client has gone")
        transport.write(data)

    async def drained(self, time_limit: float) -> None:
        """Wait until the other end takes more; one that takes nothing for ``time_limit`` s is cut off."""
        if self.full is None:
            return
        try:
            async with asyncio.timeout(time_limit):
                await asyncio.shield(self.full)
        except TimeoutError:
            if self._transport is not None:
                cut_off(self._transport)
            raise ConnectionResetError("the client stopped reading") from None

    def fill(self) -> None:
        """The transport takes no more for now."""
        self.full = self._loop.create_future()

    def empty(self) -> None:
        """The transport takes more again."""
        waiting, self.full = self.full, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def lose(self) -> None:
        """The transport has ended."""
        self.lost = True
        if self._last_bytes is not None:
            self._last_bytes.cancel()
        if self.full is not None and not self.full.done():
            self.full.set_exception(ConnectionResetError("the client has gone"))
            self.full.exception()  # Seen, even if nobody waits any more.

    def pause(self) -> None:
        """Read nothing for now."""
        if not self.paused and self._transport is not None and not self.lost:
            self.paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self.paused and self._transport is not None and not self.lost:
            self.paused = False
            self._transport.resume_reading()

    def half_close(self) -> None:
        """Say that no more will be sent, so that the other end reads what was sent to its end."""
        if self.open and self._transport is not None and self._transport.can_write_eof():
            with suppress(OSError):  # reset meanwhile, which the loop has not told us of yet
                self._transport.write_eof()

    def close(self) -> None:
        """End once all is sent, or the other end has not taken it in time."""
        if self._transport is not None and not self.lost and self._last_bytes is None:
            self._last_bytes = close_in_time(self._transport, self._loop)

    def abort(self) -> None:
        """End at once, with whatever is unsent."""
        if self._transport is not None:
            self._transport.abort()
