"""A link to a server that a test can cut, freeze and heal: a TCP forwarder on loopback."""

from __future__ import annotations

import asyncio
from typing import Literal

from fencegate.testing.tcp_server import TcpServer

State = Literal["open", "cut", "frozen"]


class TcpLink(TcpServer):
    """Forwards to ``host:port``. *cut*: connections break at once. *frozen*: taken, but not a byte passes."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(self._forward)
        self._target = (host, port)
        self._state: State = "open"
        self._thawed = asyncio.Event()
        self._thawed.set()

    def cut(self) -> None:
        self._state = "cut"
        self._thawed.set()
        self.drop()

    def freeze(self) -> None:
        self._state = "frozen"
        self._thawed.clear()

    def heal(self) -> None:
        self._state = "open"
        self._thawed.set()

    async def _forward(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        await self._thawed.wait()
        if self._state == "cut":
            return
        server, to_server = await asyncio.open_connection(*self._target)
        ways = [asyncio.create_task(self._pump(client, to_server)), asyncio.create_task(self._pump(server, to_client))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            to_server.transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pump(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            await self._thawed.wait()
            to.write(data)
            await to.drain()
