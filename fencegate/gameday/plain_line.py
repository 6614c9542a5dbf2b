"""One keep-alive connection to a gateway, on which many requests are sent at once and answered in their order.

For clients that press: a connection a request, as :mod:`fencegate.gameday.plain_http` has it, costs more than a write.
Answers are cut apart and handed on as they came; what they mean is for :mod:`fencegate.gameday.plain_client` to say.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from fencegate.gameday.plain_http import NoAnswer, NotSent

_LARGEST: Final = 1 << 20
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *([0-9]{1,9})(?=\r\n|$)", re.IGNORECASE)


class Raw(NamedTuple):
    """A whole answer: its status line and header lines without the blank line behind them, and its body."""

    head: bytes
    body: bytes


Timed = tuple[Raw | NotSent | NoAnswer, float]
"""What came, and when, on the event loop's clock."""


class PlainLine:
    """A connection to the gateway at ``origin``, made when it is needed. One burst at a time."""

    def __init__(self, origin: str) -> None:
        parts = urlsplit(origin)
        self._host, self._port, self._netloc = parts.hostname or "", parts.port or 80, parts.netloc
        self._pipe: _Pipe | None = None

    def request(self, method: str, path: str, headers: Sequence[tuple[str, str]] = (), body: bytes = b"") -> bytes:
        """One request as bytes."""
        length = () if method == "GET" else (("Content-Length", str(len(body))),)
        return self.head(method, path, [*headers, *length]) + b"\r\n" + body

    def head(self, method: str, path: str, headers: Sequence[tuple[str, str]]) -> bytes:
        """The request line and these header lines: what many requests begin with."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._netloc}", *(f"{name}: {text}" for name, text in headers)]
        return "\r\n".join([*lines, ""]).encode()

    async def burst(self, requests: Sequence[bytes], limit: float) -> list[Timed]:
        """Send all of them in one piece; for each its answer, or why there is none, within ``limit`` seconds.

        A connection on which an answer is missing is closed, so that no late answer is taken for the next one.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + limit
        try:
            async with asyncio.timeout_at(until):
                pipe = await self._connected()
        except (OSError, TimeoutError):
            return [(NotSent(f"{self._netloc} takes no connection"), clock()) for _ in requests]
        answers = pipe.answers = []
        try:
            async with asyncio.timeout_at(until):
                await pipe.ask(b"".join(requests), len(requests))
        except (OSError, TimeoutError, EOFError, ValueError) as error:
            self.close()
            answers += [(NoAnswer(repr(error)), clock()) for _ in range(len(requests) - len(answers))]
        except BaseException:
            self.close()
            raise
        return answers

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.transport.abort()
            self._pipe = None

    async def _connected(self) -> _Pipe:
        if self._pipe is None or self._pipe.ended is not None or self._pipe.transport.is_closing():
            self.close()
            loop = asyncio.get_running_loop()
            _, self._pipe = await loop.create_connection(lambda: _Pipe(loop), self._host, self._port)
        return self._pipe


class _Pipe(asyncio.Protocol):
    """The bytes of a connection. ``ended``: why no more will come."""

    transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._rest = b""
        self._wanted = 0
        self._done: asyncio.Future[None] | None = None
        self.answers: list[Timed] = []
        self.ended: Exception | None = None

    async def ask(self, message: bytes, count: int) -> None:
        """Send it and wait for so many answers, which are in :attr:`answers` then. Raises what ended it before."""
        self._wanted, self._done = count, self._loop.create_future()
        self.transport.write(message)
        await self._done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        data, now, at = self._rest + data, self._loop.time(), 0
        while (end := data.find(b"\r\n\r\n", at)) >= 0:
            length = _LENGTH.search(data, at, end)
            if length is None:
                self._end(ValueError("an answer without a length"))
                return
            following = end + 4 + int(length[1])
            if len(data) < following:
                break
            self.answers.append((Raw(data[at:end], data[end + 4 : following]), now))
            at = following
        self._rest = data[at:]
        if len(self._rest) > _LARGEST or len(self.answers) > self._wanted:
            self._end(ValueError("more than was asked for"))
        elif len(self.answers) == self._wanted and self._done is not None and not self._done.done():
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or EOFError("the connection was closed"))

    def _end(self, why: Exception) -> None:
        self.ended = self.ended or why
        self.transport.abort()
        if self._done is not None and not self._done.done():
            self._done.set_exception(self.ended)
