"""A link to a server that a test can cut, freeze and heal: a TCP forwarder on loopback."""

from __future__ import annotations

import asyncio
from typing import Literal

State = Literal["open", "cut", "frozen"]


class TcpLink:
    """Forwards to ``host:port``. *cut*: connections are refused or broken. *frozen*: taken, but not a byte passes."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._state: State = "open"
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        self._state = "cut"
        self._thawed.set()
        for task in self._tasks:
            task.cancel()

    def freeze(self) -> None:
        self._state = "frozen"
        self._thawed.clear()

    def heal(self) -> None:
        self._state = "open"
        self._thawed.set()

    async def close(self) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        writers = [to_client]
        try:
            if self._state == "cut":
                return
            await self._thawed.wait()
            server, to_server = await asyncio.open_connection(*self._target)
            writers.append(to_server)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(client, to_server))
                group.create_task(self._pump(server, to_client))
        except* (OSError, asyncio.CancelledError, _Ended):
            pass
        finally:
            for writer in writers:
                writer.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            await self._thawed.wait()
            to.write(data)
            await to.drain()
        raise _Ended


class _Ended(Exception):
    """One side hung up: the other is to hear of it."""

