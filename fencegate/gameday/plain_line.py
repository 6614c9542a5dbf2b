"""One keep-alive connection to a gateway, on which many requests are sent at once and answered in their order.

For clients that press: a connection a request, as :mod:`fencegate.gameday.plain_http` has it, costs more than a write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from urllib.parse import urlsplit

from fencegate.gameday.plain_http import Answer, NoAnswer, NotSent

_LARGEST = 1 << 20

Timed = tuple[Answer | NotSent | NoAnswer, float]
"""What came, and when, on the event loop's clock."""


class PlainLine:
    """A connection to the gateway at ``origin``, made when it is needed. One burst at a time."""

    def __init__(self, origin: str) -> None:
        parts = urlsplit(origin)
        self._host, self._port, self._netloc = parts.hostname, parts.port, parts.netloc
        self._pipe: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def request(self, method: str, path: str, headers: Sequence[tuple[str, str]] = (), body: bytes = b"") -> bytes:
        """One request as bytes."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._netloc}", *(f"{name}: {text}" for name, text in headers)]
        if method != "GET":
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "", ""]).encode() + body

    async def burst(self, requests: Sequence[bytes], limit: float) -> list[Timed]:
        """Send all of them in one piece; for each its answer, or why there is none, within ``limit`` seconds.

        A connection on which an answer is missing is closed, so that no late answer is taken for the next one.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + limit
        try:
            async with asyncio.timeout_at(until):
                reader, writer = await self._connected()
        except (OSError, TimeoutError):
            return [(NotSent(f"{self._netloc} takes no connection"), clock()) for _ in requests]
        answers: list[Timed] = []
        try:
            async with asyncio.timeout_at(until):
                writer.write(b"".join(requests))
                for _ in requests:
                    answers.append((await _answer(reader), clock()))
        except (OSError, TimeoutError, EOFError, ValueError) as error:
            self.close()
            answers += [(NoAnswer(repr(error)), clock()) for _ in range(len(requests) - len(answers))]
        except BaseException:
            self.close()
            raise
        return answers

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe[1].transport.abort()
            self._pipe = None

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._pipe is None or self._pipe[0].at_eof() or self._pipe[1].is_closing():
            self.close()
            self._pipe = await asyncio.open_connection(self._host, self._port, limit=_LARGEST)
        return self._pipe


async def _answer(reader: asyncio.StreamReader) -> Answer:
    """The next answer. Raises ``EOFError`` where it isn't whole, ``ValueError`` where it is no answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    status_line, *lines = head[:-4].decode("latin-1").split("\r\n")
    pairs = tuple((name, text.strip()) for name, _, text in (line.partition(":") for line in lines))
    answer = Answer(int(status_line.split(" ", 2)[1]), pairs, b"")
    body = await reader.readexactly(int(answer.header("Content-Length")))
    return Answer(answer.status, pairs, body)
