"""The body of a forwarded request on its way: hashed, counted, and sent on while there is time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fencegate.gateway.exchange import Exchange, operation_digest
from fencegate.gateway.request import Request, too_large
from fencegate.gateway.targets.upstream import UpstreamConnection


class Payload:
    """The request's body on its way: ``first`` is in memory, the rest comes from the client's stream.

    ``keyed``: a digest is made of method, target and every body byte taken so far. ``limit`` is in bytes.
    """

    __slots__ = ("_digest", "_limit", "_request", "first", "taken", "whole")

    def __init__(self, request: Request, limit: int, *, keyed: bool) -> None:
        self._request = request
        self._limit = limit
        self.first = b""
        self.whole = False
        self.taken = 0
        self._digest = operation_digest(request) if keyed else None

    @property
    def in_hand(self) -> int | None:
        """Bytes of the body in memory: all of it, or none while the client waits to be asked; else ``None``."""
        if self.whole:
            return len(self.first)
        return 0 if self._request.expects_continue and not self.taken else None

    async def next_chunk(self) -> bytes:
        """The next bytes from the client, hashed and counted. Raises ``Refused``, ``body_too_large`` included."""
        chunk = await self._request.body.next_chunk()
        self.taken += len(chunk)
        if self.taken > self._limit:
            raise too_large(self._limit)
        if self._digest is not None:
            self._digest.update(chunk)
        if not chunk:
            self.whole = True
        return chunk

    def take(self) -> bool:
        """Take all of the body, where it is here. False: nothing of it was taken."""
        if (content := self._request.body.at_once()) is None:
            return False
        self.first, self.taken, self.whole = content, len(content), True
        if self._digest is not None:
            self._digest.update(content)
        return True

    async def read_first(self, most: int) -> None:
        """Take the body's beginning into memory: all of it, or a little more than ``most`` bytes."""
        if not self.taken and self.take():
            return
        parts = [self.first]
        size = len(self.first)
        while not self.whole and size <= most:
            chunk = await self.next_chunk()
            parts.append(chunk)
            size += len(chunk)
        self.first = b"".join(parts)

    async def rest(self) -> AsyncIterator[bytes]:
        while chunk := await self.next_chunk():
            yield chunk

    async def finish(self) -> bytes:
        """Hash what is left without keeping it; the digest. Raises ``Refused``."""
        while not self.whole and await self.next_chunk():
            pass
        return self.digest()

    def digest(self) -> bytes:
        """Of what was taken so far; empty where it is not ``keyed``."""
        return b"" if self._digest is None else self._digest.digest()


async def begun(exchange: Exchange, payload: Payload) -> None:
    """Wait for a body's first bytes, as long as the mark stands that was made for the write."""
    try:
        async with asyncio.timeout(exchange.time_left()):
            await payload.read_first(0)
    except TimeoutError:
        detail = "The write's time ran out before its body came."
        raise exchange.refused("deadline_exceeded", detail, close=True) from None


async def in_time(exchange: Exchange, connection: UpstreamConnection, payload: Payload) -> AsyncIterator[bytes]:
    """The rest of a body, up to its end, while there is time. Of an upload that is late the end is never sent.

    The process may have been stopped, or the machine asleep: the timers find out when they come to it.
    """
    async for chunk in payload.rest():
        if exchange.left() <= 0:
            connection.time_out()
        yield chunk
    if exchange.left() <= 0:
        connection.time_out()
