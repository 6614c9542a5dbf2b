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
        await pass_on((client, to_client), (server, to_server), self._thawed)


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def pass_on(client: Ends, server: Ends, may_pass: asyncio.Event | None = None) -> None:
    """Pass bytes both ways, while ``may_pass`` is set, until either end closes; then the server's is broken off."""

    async def pump(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            if may_pass is not None:
                await may_pass.wait()
            to.write(data)
            await to.drain()

    ways = [asyncio.create_task(pump(client[0], server[1])), asyncio.create_task(pump(server[0], client[1]))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        server[1].transport.abort()
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
