"""The operators' connections: aiohttp's, with the same deadlines as the clients', and only so many of them.

aiohttp by itself takes any number, and waits for ever for a request that does not come to its end.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from fencegate.gateway.cut_off import cut_off
from fencegate.gateway.edge_connection import Connection
from fencegate.gateway.edge_parts import MOST_FIELDS
from fencegate.gateway.guests import Guests
from fencegate.gateway.limits import Limits
from fencegate.gateway.request import Refused

ADMIN_LIMITS: Final = Limits(connections=256)
"""Not configured: scrapes, probes, consoles and operators are few, whatever the clients are."""
MOST_BODY_BYTES: Final = 64 * 1024
BODY_LIMIT: Final = 10.0
"""Seconds for the body of an action or a form."""


class _AdminConnection(Connection):
    """It speaks no wire contract: what it does not take is broken off without a word."""

    __slots__ = ()

    handle_error = RequestHandler.handle_error
    log_exception = RequestHandler.log_exception

    def _refuse_outright(self, error: Refused) -> None:
        self._stop_watching()
        if self.transport is not None:
            cut_off(self.transport)


class AdminConnections:
    """Makes the connections of one listener; a ``Listener`` calls it for each."""

    limits = ADMIN_LIMITS
    region = ""

    def __init__(self, server: web.Server) -> None:
        self._server = server
        self._connections: Guests[Connection] = Guests()

    def __call__(self) -> Connection:
        return _AdminConnection(
            self,
            self._server,
            access_log=None,
            keepalive_timeout=self.limits.idle_timeout,
            max_headers=MOST_FIELDS,
            max_line_size=self.limits.header_bytes,
            max_field_size=self.limits.header_bytes,
        )

    def admit(self, connection: Connection) -> bool:
        """Whether one more connection fits."""
        return self._connections.admit(connection, self.limits)

    def lost(self, connection: Connection) -> None:
        self._connections.left(connection)

    def check_idle(self) -> None:
        """Nobody waits for that here."""
