"""A real little HTTP upstream that writes down every request and can be told to misbehave.

It reads raw bytes itself, so that what it records is what was sent, and it leans on no HTTP library
whose own ideas could hide a fault of the proxy in front of it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

Headers = list[tuple[str, str]]


@dataclass(slots=True)
class Recorded:
    """One request as it came. ``body`` is decoded from chunks and kept up to ``keep_bytes``; ``size`` is all of it."""

    method: str
    target: str
    headers: Headers
    body: bytes = b""
    size: int = 0
    complete: bool = False
    chunked: bool = False
    connection: int = 0

    def values(self, name: str) -> list[str]:
        """Every value under this name, compared without case."""
        return [value for key, value in self.headers if key.lower() == name.lower()]


@dataclass(slots=True)
class Wire:
    """What a behaviour may do: read the rest of the request, write bytes, or break off."""

    request: Recorded
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    keep_bytes: int
    close: bool = False

    async def read_body(self) -> None:
        """Read the body to its end, as ``Content-Length`` or chunks say."""
        async for part in self._parts():
            self.request.size += len(part)
            if len(self.request.body) < self.keep_bytes:
                self.request.body += part
        self.request.complete = True

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, status: int = 200, body: bytes = b"ok", *headers: tuple[str, str]) -> None:
        """A plain answer with a length."""
        lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers]
        await self.send("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)

    async def _parts(self) -> AsyncIterator[bytes]:
        if self.request.chunked:
            while True:
                size = int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16)
                if size == 0:
                    while await self.reader.readuntil(b"\r\n") != b"\r\n":
                        pass
                    return
                yield await self.reader.readexactly(size)
                await self.reader.readexactly(2)
        lengths = self.request.values("content-length")
        left = int(lengths[0]) if lengths else 0
        while left:
            part = await self.reader.read(min(left, 65536))
            if not part:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(part)
            yield part


Behaviour = Callable[[Wire], Awaitable[None]]
"""Answers one request. Reading the body is its own business; :class:`RecordingUpstream` has ready-made ones."""


async def well_behaved(wire: Wire) -> None:
    """Reads everything, answers 200."""
    await wire.read_body()
    await wire.answer()


async def closes_after_reading(wire: Wire) -> None:
    """Reads everything and closes without a word: the write may have been applied."""
    await wire.read_body()
    wire.close = True


async def never_answers(wire: Wire) -> None:
    """Reads everything and then says nothing until the other end gives up."""
    await wire.read_body()
    await wire.reader.read(1)
    wire.close = True


async def half_an_answer(wire: Wire) -> None:
    """Promises 100 bytes, sends ten of them and closes."""
    await wire.read_body()
    await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n0123456789")
    wire.close = True


async def half_a_head(wire: Wire) -> None:
    """Breaks off inside its header lines."""
    await wire.read_body()
    await wire.send(b"HTTP/1.1 200 OK\r\nContent-Le")
    wire.close = True


async def chunked_with_trailers(wire: Wire) -> None:
    """A chunked answer with a trailer field."""
    await wire.read_body()
    await wire.send(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
        b"5\r\nhello\r\n6\r\n world\r\n0\r\nX-Sum: 1\r\n\r\n"
    )


async def until_close(wire: Wire) -> None:
    """An answer without a length: it ends where the connection ends."""
    await wire.read_body()
    await wire.send(b"HTTP/1.1 200 OK\r\n\r\nto the end")
    wire.close = True


async def informs_first(wire: Wire) -> None:
    """Two interim answers before the final one."""
    await wire.read_body()
    await wire.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
    await wire.answer(201, b"made")


async def answers_early(wire: Wire) -> None:
    """Answers 413 without reading the body, then closes, as a server with a limit does."""
    await wire.answer(413, b"too much", ("Connection", "close"))
    with suppress(OSError):
        await wire.reader.read(65536)
    wire.close = True


def answers(status: int, body: bytes = b"", *headers: tuple[str, str]) -> Behaviour:
    """Reads everything, gives this answer."""

    async def behave(wire: Wire) -> None:
        await wire.read_body()
        if wire.request.method == "HEAD" or status in (204, 304):
            lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in headers)]
            await wire.send("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n")
        else:
            await wire.answer(status, body, *headers)

    return behave


def huge(size: int, piece: int = 65536) -> Behaviour:
    """Reads everything, answers with ``size`` bytes."""

    async def behave(wire: Wire) -> None:
        await wire.read_body()
        await wire.send(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
        left = size
        while left:
            part = min(left, piece)
            await wire.send(b"x" * part)
            left -= part

    return behave


def waits_for(event: asyncio.Event) -> Behaviour:
    """Reads everything, answers 200 once ``event`` is set."""

    async def behave(wire: Wire) -> None:
        await wire.read_body()
        await event.wait()
        await wire.answer()

    return behave


_STEPS_TO_ACCEPT = 3
"""Turns of the event loop after which what it had accepted when its listener closed is a connection."""


@dataclass
class RecordingUpstream:
    """The upstream. Set ``behaviour`` before a request; read ``requests`` after. Loopback only.

    ``tls``: what it accepts with, in place of plain TCP; it is called ``localhost`` then.
    """

    behaviour: Behaviour = well_behaved
    keep_bytes: int = 1_048_576
    requests: list[Recorded] = field(default_factory=list)
    connections: int = 0
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrived = asyncio.Event()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}" if self.tls is None else f"https://localhost:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0, ssl=self.tls)

    async def stop(self) -> None:
        """Close the listener and every connection; afterwards the port refuses."""
        if self._server is not None:
            self._server.close()
        for _ in range(_STEPS_TO_ACCEPT):
            await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> RecordingUpstream:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def arrived(self, count: int = 1, time_limit: float = 20.0) -> None:
        """Wait until ``count`` requests have come in whole heads."""
        async with asyncio.timeout(time_limit):
            while len(self.requests) < count:
                self._arrived.clear()
                await self._arrived.wait()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._serve(reader, writer, self.connections))
        self._tasks.add(task)

        def ended(_: asyncio.Task[None]) -> None:  # no finally in the task: it may be cancelled before its first step
            self._tasks.discard(task)
            writer.close()

        task.add_done_callback(ended)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while await self._one(reader, writer, number):
                pass

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")[:-2]
        method, target, _ = lines[0].split(" ")
        headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines[1:])]
        request = Recorded(method, target, headers, connection=number)
        request.chunked = bool(request.values("transfer-encoding"))
        self.requests.append(request)
        self._arrived.set()
        wire = Wire(request, reader, writer, self.keep_bytes)
        await self.behaviour(wire)
        return not wire.close
