"""A TCP proxy between a store and its Postgres that cuts a connection at a chosen moment."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit


class CuttingProxy:
    """``cut_after(marker)``: the next client message that holds ``marker`` is forwarded, its answer is swallowed once
    it has come back, and the connection is cut: the statement was carried out, and nobody knows.
    """

    def __init__(self, dsn: str) -> None:
        self._target = urlsplit(dsn)
        self._marker: bytes | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.cuts = 0

    @property
    def dsn(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        user = f"{self._target.username}:{self._target.password}"
        return urlunsplit(self._target._replace(netloc=f"{user}@127.0.0.1:{port}"))

    def cut_after(self, marker: bytes) -> None:
        self._marker = marker

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        server, to_server = await asyncio.open_connection(self._target.hostname, self._target.port)
        doomed = asyncio.Event()
        back = asyncio.create_task(self._answers(server, to_client, doomed))
        try:
            while data := await client.read(65536):
                if self._marker is not None and self._marker in data:
                    self._marker = None
                    doomed.set()
                to_server.write(data)
                await to_server.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            back.cancel()
            await asyncio.gather(back, return_exceptions=True)
            to_client.transport.abort()
            to_server.transport.abort()

    async def _answers(
        self, server: asyncio.StreamReader, to_client: asyncio.StreamWriter, doomed: asyncio.Event
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await server.read(65536):
                if doomed.is_set():
                    # ReadyForQuery ends an answer: by then the commit is done.
                    while not data.endswith(b"Z\x00\x00\x00\x05I"):
                        if not (more := await server.read(65536)):
                            return
                        data += more
                    self.cuts += 1
                    to_client.transport.abort()
                    return
                to_client.write(data)
                await to_client.drain()
            to_client.transport.abort()
