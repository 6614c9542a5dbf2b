"""An HTTP server that means harm: what it says is chosen by a test, and none of it is an answer.

For what asks servers over HTTP and must come back: in its time, without filling its memory, and with its secrets kept.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from fencegate.testing.tcp_server import TcpServer

Say = Callable[[asyncio.StreamWriter], Awaitable[None]]
"""Says something on one connection, whose request has been read; the connection ends with it."""

_PIECE: Final = b"a" * 65536
_OK: Final = b"HTTP/1.1 200 OK\r\nX-Consul-Index: 7\r\n"


class HostileServer(TcpServer):
    """Reads a request on each connection, then does :attr:`say`. ``requests`` are the heads that came, whole."""

    def __init__(self, say: Say) -> None:
        super().__init__(self._talk)
        self.say = say
        self.requests: list[bytes] = []

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(head)
        lengths = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        await reader.readexactly(int(lengths[0]) if lengths else 0)
        await self.say(writer)


def says(raw: bytes) -> Say:
    """These bytes, and the end."""

    async def say(writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()

    return say


def answers(body: bytes, status: int = 200, *headers: bytes) -> Say:
    """A whole answer."""
    lines = b"".join(header + b"\r\n" for header in headers)
    return says(b"HTTP/1.1 %d X\r\n%bContent-Length: %d\r\n\r\n%b" % (status, lines, len(body), body))


def goes_on(first: bytes, again: bytes = _PIECE, pause: float = 0.0) -> Say:
    """``first``, and then ``again`` for ever, with ``pause`` seconds in between."""

    async def say(writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        while True:
            writer.write(again)
            await writer.drain()
            await asyncio.sleep(pause)

    return say


async def silent(writer: asyncio.StreamWriter) -> None:
    """Takes the request, and says nothing for ever."""
    await asyncio.Event().wait()


async def hangs_up(writer: asyncio.StreamWriter) -> None:
    """Takes the request, and ends the connection."""


NO_ANSWERS: Final[dict[str, Say]] = {
    "nothing": hangs_up,
    "silence": silent,
    "no HTTP": says(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "half a status line": says(b"HTTP/1.1 20"),
    "half a head": says(_OK + b"Content-Le"),
    "half a body": says(_OK + b"Content-Length: 1000\r\n\r\n{"),
    "a body that drips": goes_on(_OK + b"Content-Length: 1000000\r\n\r\n", b" ", 0.01),
    "a head that drips": goes_on(_OK + b"X-Slow: ", b"a", 0.01),
    "a field without an end": goes_on(_OK + b"X-Long: "),
    "fields without an end": goes_on(_OK, b"X-More: 1\r\n" * 1000),
    "interim answers without an end": goes_on(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "hints without an end": goes_on(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 100),
    "a body without an end": goes_on(_OK + b"Content-Length: 99999999999999\r\n\r\n"),
    "chunks without an end": goes_on(_OK + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + _PIECE + b"\r\n"),
    "a body up to the end": goes_on(_OK + b"\r\n"),
    "a chunk size without an end": goes_on(_OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
    "trailers without an end": goes_on(_OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: 1\r\n" * 1000),
    "two lengths": says(_OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
    "a length and a coding": says(_OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}"),
    "a negative length": says(_OK + b"Content-Length: -2\r\n\r\n{}"),
    "a bad chunk": says(_OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"),
    "another protocol": says(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"),
    "deep nesting": answers(b"[" * 1_000_000),
    "deep nesting of objects": answers(b'{"a":' * 300_000),
    "a huge number": answers(b"9" * 1_000_000),
    "bytes that are no text": answers(b"\xff\xfe\x00" * 1000),
    "an empty answer": answers(b""),
    "packed, and it is not": answers(b"{}", 200, b"Content-Encoding: gzip"),
    "packed in an unknown way": answers(b"{}", 200, b"Content-Encoding: zstd, x-none"),
    "an unknown charset": answers(b"{}", 200, b"Content-Type: application/json; charset=none-such"),
}
"""By name, what is no answer to anything."""


def packed_gigabyte(*headers: bytes) -> Say:
    """A gigabyte of zeros in a megabyte of gzip."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    piece = bytes(1 << 20)
    bomb = b"".join(packer.compress(piece) for _ in range(1024)) + packer.flush()
    return answers(bomb, 200, b"Content-Encoding: gzip", *headers)


class PeakMemory:
    """``async with PeakMemory() as memory: …``; then ``memory.grown`` is by how many MB the process was ever larger.

    Linux only: elsewhere it is 0.
    """

    def __init__(self) -> None:
        self.grown = 0.0
        self._before = _resident()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> PeakMemory:
        self._task = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._note()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _look(self) -> None:
        while True:
            self._note()
            await asyncio.sleep(0.02)

    def _note(self) -> None:
        self.grown = max(self.grown, _resident() - self._before)


def _resident() -> float:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20
    except OSError:
        return 0.0
