"""The lean HTTP edge: an ``asyncio.Protocol`` with a strict parser of its own; the default for the data listener.

It shares every station with the aiohttp edge and holds the same contract. What it leaves out is what costs: no
objects of an HTTP library, no header dictionaries, one timer a connection, a task only for what has to be
waited for.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final

from fencegate.gateway.app import Gateway
from fencegate.gateway.exchange import Pending
from fencegate.gateway.protocol_connection import Begun, ProtocolConnection
from fencegate.gateway.request import Request

BACKLOG: Final = 1024
"""Connections that wait to be accepted, a listening socket."""


class ProtocolEdge:
    """The data listener. :meth:`start`, then :meth:`stop`; both once."""

    def __init__(self, gateway: Gateway, *, ssl_context: ssl.SSLContext | None = None) -> None:
        self._gateway = gateway
        self.limits = gateway.limits
        self.region = gateway.region
        self.scheme = "https" if ssl_context is not None else "http"
        self.begin: Callable[[Request], Begun | Pending] = gateway.begin
        self.go_on: Callable[[Pending], Begun] = gateway.go_on
        self._ssl = ssl_context
        self._connections: set[ProtocolConnection] = set()
        self._servers: list[asyncio.Server] = []
        self._idle = asyncio.Event()
        self._stopping = False

    async def start(self, host: str, port: int) -> None:
        """Listen on ``host:port``; port 0 takes a free one (see :attr:`port`). Raises ``OSError``."""
        loop = asyncio.get_running_loop()
        self._servers.append(
            await loop.create_server(
                lambda: ProtocolConnection(self, loop), host, port, ssl=self._ssl, reuse_address=True, backlog=BACKLOG
            )
        )

    async def start_on(self, sockets: Sequence[socket.socket]) -> None:
        """Accept on sockets that listen already: another process made them and holds them as well."""
        loop = asyncio.get_running_loop()
        for listening in sockets:
            self._servers.append(
                await loop.create_server(
                    lambda: ProtocolConnection(self, loop), sock=listening, ssl=self._ssl, backlog=BACKLOG
                )
            )

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._servers[0].sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def in_flight(self) -> int:
        """Connections with a request or a reply under way."""
        return sum(1 for connection in self._connections if connection.busy)

    async def stop(self, time_limit: float) -> int:
        """Stop accepting, let requests under way finish for ``time_limit`` s, close. How many were cut off."""
        self._stopping = True
        self._gateway.hold_no_more()
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.finish_up()
        abandoned = 0
        try:
            async with asyncio.timeout(time_limit):
                while self.in_flight:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            abandoned = self.in_flight
        for connection in list(self._connections):
            connection.break_off()
        return abandoned

    def admit(self, connection: ProtocolConnection) -> bool:
        """Whether one more connection fits."""
        if self._stopping or len(self._connections) >= self.limits.connections:
            return False
        self._connections.add(connection)
        return True

    def lost(self, connection: ProtocolConnection) -> None:
        self._connections.discard(connection)
        self._idle.set()

    def check_idle(self) -> None:
        self._idle.set()
