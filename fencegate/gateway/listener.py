"""The sockets that a server accepts on, in the clear or under TLS, whose certificates can change while it runs."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final

BACKLOG: Final = 1024
"""Connections that wait to be accepted, a listening socket."""
_GOODBYE: Final = 2.0
"""Seconds for the other end to agree to the end of a TLS connection."""


class Listener:
    """Makes a protocol by ``factory`` for every connection, once its handshake is through where there is TLS.

    ``context`` of ``None`` is plain TCP, for good.
    """

    def __init__(self, factory: Callable[[], asyncio.BaseProtocol], context: ssl.SSLContext | None) -> None:
        self._factory: Callable[[], Any] = factory
        self._context = context
        self._servers: list[asyncio.Server] = []
        self._closed = False

    @property
    def scheme(self) -> str:
        return "http" if self._context is None else "https"

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._servers[0].sockets[0].getsockname()[1])

    async def start(self, host: str, port: int, handshake: float) -> None:
        """Accept on ``host:port``, 0 for a free one. ``handshake``: seconds that TLS gets. Raises ``OSError``."""
        tls = _tls(self._context, handshake)
        self._servers.append(
            await asyncio.get_running_loop().create_server(
                self._factory, host, port, reuse_address=True, backlog=BACKLOG, **tls
            )
        )

    async def start_on(self, sockets: Sequence[socket.socket], handshake: float) -> None:
        """Accept on sockets that listen already."""
        for each in sockets:
            self._servers.append(await self._server_on(each, self._context, handshake))

    async def use(self, context: ssl.SSLContext, handshake: float) -> None:
        """Accept later connections with ``context``; those that are there go on.

        The sockets stay, and with them who waits to be accepted. Nothing of the old context does, no session to be
        resumed either: whoever may come in is asked anew. Raises ``OSError``, and then all is as before.
        """
        assert self._context is not None
        made: list[asyncio.Server] = []
        unused = made
        try:
            for each in [each for server in self._servers for each in server.sockets]:
                # By number: the loops' own socket objects cannot all be duplicated.
                same = socket.socket(fileno=os.dup(each.fileno()))
                try:
                    made.append(await self._server_on(same, context, handshake))
                except BaseException:
                    same.close()
                    raise
            if not self._closed:
                unused, self._servers, self._context = self._servers, made, context
        finally:
            for server in unused:
                server.close()

    def close(self) -> None:
        """Accept no more; the connections stay."""
        self._closed = True
        for server in self._servers:
            server.close()

    async def _server_on(self, each: socket.socket, context: ssl.SSLContext | None, handshake: float) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(self._factory, sock=each, backlog=BACKLOG, **_tls(context, handshake))


def _tls(context: ssl.SSLContext | None, handshake: float) -> dict[str, Any]:
    if context is None:
        return {}
    return {"ssl": context, "ssl_handshake_timeout": handshake, "ssl_shutdown_timeout": _GOODBYE}
