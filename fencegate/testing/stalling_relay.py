"""A TCP relay to one server that a test can stall and cut: the network's part in the election contract.

A stalled relay goes on taking connections and bytes, as a frozen machine's kernel does, and passes nothing on. What
was sent meanwhile arrives when it resumes, even where the sender has hung up by then: a request that is late.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

_PIECE: Final = 65536


class StallingRelay:
    """In front of ``target``, a ``host:port``. Lives in the event loop that started it."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._server: asyncio.Server | None = None
        self._running = asyncio.Event()
        self._running.set()
        self._links: set[asyncio.Task[None]] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self._ways: set[asyncio.Event] = set()

    async def start(self) -> str:
        """Its own ``host:port``."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def stall(self) -> None:
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    def strand(self) -> None:
        """Nothing passes any more on what is open now, and nobody is told; new connections are good."""
        for way in self._ways:
            way.clear()

    def cut(self) -> None:
        """Break every connection that is open now; new ones are taken."""
        for client in self._clients:
            client.transport.abort()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        link = asyncio.ensure_future(self._link(reader, client))
        self._links.add(link)
        self._clients.add(client)
        link.add_done_callback(self._links.discard)
        try:
            await asyncio.wait([link])
        finally:
            self._clients.discard(client)
            client.transport.abort()

    async def _link(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        way = asyncio.Event()
        way.set()
        self._ways.add(way)
        try:
            await self._pass_both(reader, client, way)
        finally:
            self._ways.discard(way)

    async def _pass_both(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter, way: asyncio.Event) -> None:
        await self._running.wait()
        with contextlib.suppress(OSError):
            answers, server = await asyncio.open_connection(self._host, self._port)
            try:
                back = asyncio.ensure_future(self._pass_on(answers, client, way))
                await self._pass_on(reader, server, way)
                back.cancel()
            finally:
                server.close()

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: asyncio.Event) -> None:
        with contextlib.suppress(OSError):
            while piece := await source.read(_PIECE):
                await self._running.wait()
                await way.wait()
                sink.write(piece)
                await sink.drain()
        await self._running.wait()
        await way.wait()
        sink.close()
