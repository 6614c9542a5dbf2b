"""One HTTP/1.1 request on a connection of its own, as any program without fencegate's SDK would send it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

_LARGEST = 1 << 20


class NotSent(Exception):
    """Nobody took the connection: not one byte of the request has left."""


class NoAnswer(Exception):
    """The request was sent and no whole answer came back."""


@dataclass(frozen=True, slots=True)
class Answer:
    """``headers`` are the header lines as they came."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str:
        """The first header of this name, or ``""``."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), "")


async def ask(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    limit: float = 3.0,
) -> Answer:
    """Send once and read the whole answer, in ``limit`` seconds. Raises :class:`NotSent` or :class:`NoAnswer`."""
    parts = urlsplit(url)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    lines = [f"{method} {target} HTTP/1.1", f"Host: {parts.netloc}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if method != "GET":
        lines.append(f"Content-Length: {len(body)}")
    request = "\r\n".join([*lines, "", ""]).encode() + body
    until = asyncio.get_running_loop().time() + limit
    try:
        async with asyncio.timeout_at(until):
            secure = parts.scheme == "https"
            port = parts.port or (443 if secure else 80)
            reader, writer = await asyncio.open_connection(parts.hostname, port, limit=_LARGEST, ssl=secure or None)
    except (OSError, TimeoutError) as error:
        raise NotSent(f"{parts.netloc} takes no connection") from error
    try:
        async with asyncio.timeout_at(until):
            writer.write(request)
            return _parsed(await reader.read(_LARGEST) + await _rest(reader))
    except (OSError, TimeoutError) as error:
        raise NoAnswer(f"{parts.netloc} gave no answer: {error or 'time is up'}") from error
    finally:
        writer.close()


async def _rest(reader: asyncio.StreamReader) -> bytes:
    chunks = []
    while chunk := await reader.read(_LARGEST):
        chunks.append(chunk)
    return b"".join(chunks)


def _parsed(raw: bytes) -> Answer:
    """The answer on a connection that the server has closed. Raises :class:`NoAnswer` where it is not whole."""
    head, blank, body = raw.partition(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").split("\r\n")
    words = status_line.split(" ", 2)
    if not blank or len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal():
        raise NoAnswer("the connection ended before the answer did")
    pairs = tuple((name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines))
    answer = Answer(int(words[1]), pairs, body)
    if answer.header("Transfer-Encoding").lower() == "chunked":
        return replace(answer, body=_without_chunks(body))
    length = answer.header("Content-Length")
    if length.isdecimal() and len(body) != int(length):
        raise NoAnswer("the connection ended before the answer did")
    return answer


def _without_chunks(body: bytes) -> bytes:
    """The body out of its chunks (RFC 9112, section 7.1). Raises :class:`NoAnswer` where the last one is missing."""
    parts: list[bytes] = []
    while True:
        size, line, body = body.partition(b"\r\n")
        try:
            length = int(size.split(b";")[0], 16)
        except ValueError:
            length = -1
        if not line or length < 0 or len(body) < length + 2:
            raise NoAnswer("the connection ended before the answer did")
        if length == 0:
            return b"".join(parts)
        parts.append(body[:length])
        body = body[length + 2 :]
