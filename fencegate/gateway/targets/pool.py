"""Connections to one upstream, kept for the next exchange.

An idle connection that turns out to be closed before the first byte was written is replaced. After
that byte nothing is ever replaced or sent again.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final
from urllib.parse import urlsplit

from fencegate.access.refusals import advice
from fencegate.errors import FencegateError
from fencegate.gateway.targets.deadlines import Deadlines
from fencegate.gateway.targets.slots import Slots
from fencegate.gateway.targets.upstream import KEYS, UpstreamConnection

_BROKEN_OFF: Final = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)
_HANDSHAKE: Final = (
    "the TLS handshake was broken off ({}): does it speak TLS on this port, or want another certificate of ours "
    "(upstream.tls.cert)?"
)


class ConnectFailed(FencegateError):
    """No connection to the upstream; not one byte was sent."""


class UpstreamPool:
    """Connections to one upstream, newest first. ``idle_timeout`` is short, because a lost race costs an answer."""

    def __init__(
        self,
        base_url: str,
        *,
        ssl_context: ssl.SSLContext | None = None,
        connect_timeout: float = 3.0,
        idle_timeout: float = 4.0,
        most: int = 512,
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"an upstream is an http:// or https:// URL, not {base_url!r}")
        self.host_header = parts.netloc.encode("ascii")
        self.prefix = parts.path.rstrip("/")
        self.name = f"{parts.scheme}://{parts.netloc}"
        self._host = parts.hostname
        secure = parts.scheme == "https"
        self._port = parts.port or (443 if secure else 80)
        self.ssl_context = (ssl_context or ssl.create_default_context()) if secure else None
        self._connect_timeout = connect_timeout
        self._idle_timeout = idle_timeout
        self._slots = Slots(most)
        self._for_reads = Slots(max(1, most * 3 // 4))
        self._idle: list[UpstreamConnection] = []
        self._busy: set[UpstreamConnection] = set()
        self._reading: set[UpstreamConnection] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self.deadlines = Deadlines()
        self._closed = False

    async def acquire(self, time_limit: float, *, read: bool = False) -> UpstreamConnection:
        """A connection that is ready for its first byte, within ``time_limit`` s. Raises :class:`ConnectFailed`.

        Reads, which nobody needs a token for, and whose readers may be slow, leave a quarter of them to writes.
        """
        if (idle := self.take_idle(read=read)) is not None:
            return idle
        if not read:
            return await self._acquired(time_limit)
        await self._slot(self._for_reads, time_limit)
        try:
            connection = await self._acquired(time_limit)
        except BaseException:
            self._for_reads.give_back()
            raise
        self._reading.add(connection)
        return connection

    def take_idle(self, *, read: bool = False) -> UpstreamConnection | None:
        """As :meth:`acquire`, where that has not to wait for anything."""
        if self._closed or not self._idle or not self._slots.take():
            return None
        if read and not self._for_reads.take():
            self._slots.give_back()
            return None
        connection = self._an_idle_one()
        if connection is None:
            self._slots.give_back()
            if read:
                self._for_reads.give_back()
            return None
        self._busy.add(connection)
        if read:
            self._reading.add(connection)
        return connection

    async def _acquired(self, time_limit: float) -> UpstreamConnection:
        await self._slot(self._slots, time_limit)
        try:
            if self._closed:
                raise ConnectFailed("the gateway is ending")
            connection = self._an_idle_one() or await self._connect(min(time_limit, self._connect_timeout))
        except BaseException:
            self._slots.give_back()
            raise
        self._busy.add(connection)
        return connection

    async def _slot(self, slots: Slots, time_limit: float) -> None:
        try:
            await slots.wait(time_limit)
        except TimeoutError:
            raise ConnectFailed(f"all connections to {self.name} are busy") from None

    def _free(self, connection: UpstreamConnection) -> bool:
        """Give its place back; whether it had one."""
        if connection not in self._busy:
            return False
        self._busy.discard(connection)
        self._slots.give_back()
        if connection in self._reading:
            self._reading.discard(connection)
            self._for_reads.give_back()
        return True

    def release(self, connection: UpstreamConnection) -> None:
        """Give the connection back; one that is not :attr:`UpstreamConnection.reusable` is closed. Once per acquire."""
        if not self._free(connection):
            return
        if self._closed or not connection.reusable:
            connection.close()
            return
        limit = self._idle_timeout
        if connection.idle_limit is not None:
            limit = min(limit, connection.idle_limit - 1)
        if limit <= 0:
            connection.close()
            return
        loop = connection.loop
        connection.idle_until = loop.time() + limit
        self._idle.append(connection)
        if self._sweep is None or self._sweep.when() > connection.idle_until:
            self._sweep_at(loop, connection.idle_until)

    def give_back_unused(self, connection: UpstreamConnection) -> None:
        """Nothing was written: close it, so that no half-begun exchange is ever reused."""
        if self._free(connection):
            connection.close()

    async def close(self) -> None:
        """Close every connection, idle or busy; there will be no other."""
        self._closed = True
        for connection in (*self._idle, *self._busy):
            connection.close()
        self._idle.clear()
        self.deadlines.close()
        if self._sweep is not None:
            self._sweep.cancel()
        await asyncio.sleep(0)

    def _an_idle_one(self) -> UpstreamConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_until > connection.loop.time() and connection.usable_when_idle():
                return connection
            connection.close()
        return None

    async def _connect(self, time_limit: float) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(max(0.0, time_limit)):
                _, connection = await loop.create_connection(
                    UpstreamConnection, self._host, self._port, ssl=self.ssl_context
                )
        except TimeoutError:
            raise ConnectFailed(f"{self.name} did not accept a connection in time") from None
        except OSError as error:
            why = advice(error, KEYS)
            if self.ssl_context is not None and isinstance(error, _BROKEN_OFF):
                why = _HANDSHAKE.format(why)
            raise ConnectFailed(f"{self.name} cannot be reached: {why}") from error
        # Of TLS something may have come: a ticket for the next session.
        if self.ssl_context is None and not connection.usable_when_idle():
            connection.close()
            raise ConnectFailed(f"{self.name} closed the connection at once, or spoke before it was asked")
        return connection

    def _sweep_at(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep = loop.call_at(due, self._close_expired, loop)

    def _close_expired(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweep, now = None, loop.time()
        for connection in self._idle:
            if connection.idle_until <= now:
                connection.close()
        self._idle = [connection for connection in self._idle if connection.idle_until > now]
        if self._idle:
            self._sweep_at(loop, min(connection.idle_until for connection in self._idle))
