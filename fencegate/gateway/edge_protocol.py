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

from fencegate.gateway.app import Gateway
from fencegate.gateway.edge_parts import LAST_WORDS
from fencegate.gateway.exchange import Pending
from fencegate.gateway.guests import Guests
from fencegate.gateway.listener import Listener
from fencegate.gateway.protocol_connection import Begun, ProtocolConnection
from fencegate.gateway.request import Request


class ProtocolEdge:
    """The data listener. :meth:`start`, then :meth:`stop`; both once."""

    def __init__(self, gateway: Gateway, *, ssl_context: ssl.SSLContext | None = None) -> None:
        self._gateway = gateway
        self.limits = gateway.limits
        self.region = gateway.region
        self.begin: Callable[[Request], Begun | Pending] = gateway.begin
        self.go_on: Callable[[Pending], Begun] = gateway.go_on
        self._listener = Listener(lambda: ProtocolConnection(self, asyncio.get_running_loop()), ssl_context)
        self.scheme = self._listener.scheme
        self._connections: Guests[ProtocolConnection] = Guests()
        self._stopping = False

    async def start(self, host: str, port: int) -> None:
        """Listen on ``host:port``; port 0 takes a free one (see :attr:`port`). Raises ``OSError``."""
        await self._listener.start(host, port, self.limits.header_timeout)

    async def start_on(self, sockets: Sequence[socket.socket]) -> None:
        """Accept on sockets that listen already: another process made them and holds them as well."""
        await self._listener.start_on(sockets, self.limits.header_timeout)

    async def use_tls(self, context: ssl.SSLContext) -> None:
        """As :meth:`Listener.use`, where there was TLS from the start. Raises ``OSError``."""
        await self._listener.use(context, self.limits.header_timeout)

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._listener.port

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def in_flight(self) -> int:
        """Connections with a request or a reply under way."""
        return self._connections.busy

    async def stop(self, time_limit: float) -> int:
        """Stop accepting, let requests under way finish for ``time_limit`` s, close. How many were given up.

        Those are answered too, as far as there is anybody to hear it: that their outcome is not known.
        """
        self._stopping = True
        self._gateway.hold_no_more()
        self._listener.close()
        for connection in self._connections:
            connection.finish_up()
        abandoned = 0
        if not await self._connections.none_busy(time_limit):
            abandoned = self.in_flight
            self._gateway.ending.begin()
            for connection in self._connections:
                connection.give_up()
            await self._connections.none_left(LAST_WORDS)
        for connection in self._connections:
            connection.break_off()
        return abandoned

    def admit(self, connection: ProtocolConnection) -> bool:
        """Whether one more connection fits."""
        return not self._stopping and self._connections.admit(connection, self.limits)

    def lost(self, connection: ProtocolConnection) -> None:
        self._connections.left(connection)

    def check_idle(self) -> None:
        self._connections.look_again()
